// Binds what saves and loads. A path is written to as a whole; a function gets or gives bytes piece
// by piece, so that no second copy is held. Python layer.
#include "kv_cache_files.h"

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "arguments.h"
#include "quire/error.h"

namespace quire::python {
namespace {

nb::bytes save(const KVCache& cache, SequenceId sequence) {
  const std::vector<std::byte> bytes = cache.save(sequence);
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

SequenceId load(KVCache& cache, const nb::bytes& bytes, std::uint64_t salt) {
  return cache.load({static_cast<const std::byte*>(bytes.data()), bytes.size()}, salt);
}

// A path, or a callable that receives bytes.
template <class ToFile, class ToSink>
void save_somewhere(nb::handle to, const ToFile& to_file, const ToSink& to_sink) {
  if (PyCallable_Check(to.ptr()) != 0) {
    const auto sink = [&](std::span<const std::byte> bytes) {
      to(nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    };
    return to_sink(ByteSink(sink));
  }
  to_file(nb::cast<std::filesystem::path>(to));
}

// A path, or a callable that takes a number of bytes and returns at most as many, like the read of
// a file.
template <class FromFile, class FromSource>
auto load_somewhere(const char* where, nb::handle from, const FromFile& from_file,
                    const FromSource& from_source) {
  if (PyCallable_Check(from.ptr()) == 0) return from_file(nb::cast<std::filesystem::path>(from));
  const auto source = [&](std::span<std::byte> to) -> std::size_t {
    const nb::object got = from(to.size());
    if (!nb::isinstance<nb::bytes>(got))
      refuse_argument(where, "what source returns", "bytes", got);
    const auto bytes = nb::borrow<nb::bytes>(got);
    if (bytes.size() > to.size())
      throw Error(ErrorKind::value, fmt::format("[{}] source must return at most {} bytes; got {}",
                                                where, to.size(), bytes.size()));
    std::memcpy(to.data(), bytes.data(), bytes.size());
    return bytes.size();
  };
  return from_source(ByteSource(source));
}

void save_to(const KVCache& cache, SequenceId sequence, nb::handle to) {
  save_somewhere(
      to, [&](const std::filesystem::path& path) { cache.save_to(sequence, path); },
      [&](ByteSink sink) { cache.save_to(sequence, sink); });
}

SequenceId load_from(KVCache& cache, nb::handle from, std::uint64_t salt) {
  return load_somewhere(
      "KVCache::load_from", from,
      [&](const std::filesystem::path& path) { return cache.load_from(path, salt); },
      [&](ByteSource source) { return cache.load_from(source, salt); });
}

void save_all(const KVCache& cache, nb::handle to) {
  save_somewhere(
      to, [&](const std::filesystem::path& path) { cache.save_all(path); },
      [&](ByteSink sink) { cache.save_all(sink); });
}

nb::dict load_all(KVCache& cache, nb::handle from) {
  const std::vector<LoadedSequence> loaded = load_somewhere(
      "KVCache::load_all", from,
      [&](const std::filesystem::path& path) { return cache.load_all(path); },
      [&](ByteSource source) { return cache.load_all(source); });
  nb::dict result;
  for (const LoadedSequence& one : loaded) result[nb::cast(one.saved)] = nb::cast(one.sequence);
  return result;
}

}  // namespace

void define_kv_cache_files(nb::class_<KVCache>& type) {
  type.def("save", &save, nb::arg("sequence"), "Tokens, ids and rows, with a checksum.")
      .def(
          "load", &load, nb::arg("bytes"), nb::arg("salt") = 0,
          "A new sequence from what save() wrote for the same layers, heads, dims and dtype. Pages "
          "that are there already are shared.")
      .def("save_to", &save_to, nb::arg("sequence"), nb::arg("to"),
           "What save() gives, to a file, which is replaced as a whole, or piece by piece to a "
           "function of bytes.")
      .def("load_from", &load_from, nb::arg("source"), nb::arg("salt") = 0,
           "A new sequence from a file, or from a function that returns at most as many bytes as "
           "it is asked for.")
      .def("save_all", &save_all, nb::arg("to"), "All sequences, as save_to.")
      .def("load_all", &load_all, nb::arg("source"),
           "All sequences of save_all: a dict from the handles they had to those they have.");
}

}  // namespace quire::python
