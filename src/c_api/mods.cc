// The C interface: buffers and mods from texts. C API layer.
#include <algorithm>
#include <memory>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

template <class Handle, class Mod>
quire_status create_mod(const char* text, const quire_buffers* buffers, Handle** handle,
                        const char* function) {
  return c_api::guarded([&] {
    c_api::require(handle, function, "mod");
    *handle = nullptr;
    c_api::require(text, function, "text");
    *handle = new Handle{Mod::parse(text, buffers == nullptr ? NamedBuffers() : buffers->buffers)};
  });
}

}  // namespace

quire_status quire_buffers_create(quire_buffers** buffers) {
  return c_api::guarded([&] {
    c_api::require(buffers, "quire_buffers_create", "buffers");
    *buffers = new quire_buffers{};
  });
}

quire_status quire_buffers_add(quire_buffers* buffers, const char* name, const quire_tensor* tensor,
                               int32_t wants_gradient) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_buffers_add";
    c_api::require(buffers, kName, "buffers");
    c_api::require(name, kName, "name");
    BufferOptions options{.name = name,
                          .wants_gradient = c_api::flag(wants_gradient, kName, "wants_gradient")};
    const auto same =
        std::ranges::find(buffers->buffers, options.name, &NamedBuffers::value_type::first);
    if (same != buffers->buffers.end())
      throw Error(ErrorKind::value,
                  "[quire_buffers_add] there is a buffer of this name already; "
                  "got '" +
                      options.name + "'");
    Buffer buffer = Buffer::borrow(c_api::tensor(tensor, kName, "tensor"), options);
    // A name that no text could use is rejected here, not later by every text.
    Formula::parse("0", {{options.name, buffer}});
    buffers->buffers.emplace_back(options.name, std::move(buffer));
  });
}

void quire_buffers_free(quire_buffers* buffers) { delete buffers; }

quire_status quire_score_mod_create(const char* text, const quire_buffers* buffers,
                                    quire_score_mod** mod) {
  return create_mod<quire_score_mod, ScoreMod>(text, buffers, mod, "quire_score_mod_create");
}

void quire_score_mod_free(quire_score_mod* mod) { delete mod; }

quire_status quire_mask_mod_create(const char* text, const quire_buffers* buffers,
                                   quire_mask_mod** mod) {
  return create_mod<quire_mask_mod, MaskMod>(text, buffers, mod, "quire_mask_mod_create");
}

void quire_mask_mod_free(quire_mask_mod* mod) { delete mod; }
