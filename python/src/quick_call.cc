// The fast path of torch's flex_attention: checks tensors, mods and masks in place, and if
// everything is as in an earlier call, runs its plan at once. All other calls go through
// quire/torch/flex_attention.py, which handles everything and registers calls here. Python layer.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gil.h"
#include "kept_plan.h"
#include "mod_guard.h"
#include "openmp.h"
#include "quire/attention.h"
#include "register.h"
#include "torch_state.h"
#include "view.h"

namespace quire::python {
namespace {

// ---- mods

// A traced score mod, over buffers without memory.
struct GuardedMod {
  ModGuard guard;
  std::shared_ptr<const ScoreMod> mod;  // shared with plans, which are used without the GIL
  std::vector<std::size_t> order;  // for each of its buffers, the index of its tensor in the guard
};

constexpr std::size_t kMostCodes = 256, kMostMods = 8;

// By the code object of the function, which the guards keep alive. Accessed only with the GIL.
using GuardedMods = std::unordered_map<PyObject*, std::vector<std::shared_ptr<const GuardedMod>>>;

GuardedMods& guarded_mods() {
  static auto* const all = new GuardedMods();  // never freed: Python may be gone by then
  return *all;
}

void learn_score_mod(nb::handle code, const nb::list& steps, const ScoreMod& mod,
                     std::vector<std::size_t> order) {
  GuardedMods& all = guarded_mods();
  if (all.size() >= kMostCodes && !all.contains(code.ptr())) all.clear();
  auto& known = all[code.ptr()];
  if (known.size() >= kMostMods) known.erase(known.begin());
  known.push_back(std::make_shared<const GuardedMod>(
      GuardedMod{ModGuard(steps), std::make_shared<const ScoreMod>(mod), std::move(order)}));
}

std::shared_ptr<const GuardedMod> find_score_mod(nb::handle mod, ReadTensors& read) {
  static const auto* const code_name = new nb::str("__code__");
  const nb::object code = attribute_or_null(mod, *code_name);
  if (!code.is_valid()) return nullptr;
  const auto found = guarded_mods().find(code.ptr());
  if (found == guarded_mods().end()) return nullptr;
  auto& known = found->second;
  for (std::size_t i = known.size(); i-- > 0;) {
    if (!known[i]->guard.holds(mod, read)) continue;
    if (i + 1 != known.size()) std::swap(known[i], known.back());  // for the next layer
    return known.back();
  }
  return nullptr;
}

// ---- masks

// What is remembered of a tensor.
struct SeenTensor {
  nb::object tensor;
  const void* data = nullptr;
  Shape strides = {};
  std::optional<long> version = {};  // set if its contents must not have changed

  bool is_there(nb::handle given, const TensorView& view) const {
    return given.is(tensor) && view.data() == data && view.strides() == strides &&
           (!version.has_value() || version == version_of(given));
  }
};

// A torch BlockMask whose blocks and rule are known; stored on it as `_quick`.
struct KnownMask {
  BlockMask core;  // including the rule
  nb::object kept_plan;
  ModGuard guard;                                        // of the rule
  std::vector<SeenTensor> reads;                         // of the rule
  nb::object seq_lengths, block_size;                    // objects of the mask
  std::vector<std::pair<nb::object, SeenTensor>> lists;  // index tensors that it has
  std::vector<nb::object> absent;                        // names of those it lacks
};

// nullopt for a tensor whose edits torch does not count.
std::optional<SeenTensor> seen(nb::handle tensor, bool is_fixed) {
  if (tensor.is_none()) return SeenTensor{.tensor = nb::none()};
  const std::optional<TensorView> view = plain_tensor(tensor);
  if (!view.has_value()) return std::nullopt;
  SeenTensor made{nb::borrow(tensor), view->data(), view->strides()};
  if (is_fixed) {
    made.version = version_of(tensor);
    if (!made.version.has_value()) return std::nullopt;
  }
  return made;
}

// `reads`: the rule's tensors; are_fixed: something was proved from their contents. lists: name ->
// index tensor or None. Returns None if torch does not count the edits of one of them.
nb::object know_mask(const BlockMask& core, nb::object kept_plan, const nb::list& steps,
                     const nb::list& reads, bool are_fixed, nb::object seq_lengths,
                     nb::object block_size, const nb::list& names, const nb::dict& lists) {
  KnownMask known{core,
                  std::move(kept_plan),
                  ModGuard(steps),
                  {},
                  std::move(seq_lengths),
                  std::move(block_size),
                  {},
                  {}};
  for (const nb::handle tensor : reads) {
    std::optional<SeenTensor> one = seen(tensor, are_fixed);
    if (!one.has_value()) return nb::none();
    known.reads.push_back(std::move(*one));
  }
  for (const nb::handle name : names) {
    if (!lists.contains(name)) {
      known.absent.push_back(nb::borrow(name));
      continue;
    }
    std::optional<SeenTensor> one = seen(nb::object(lists[name]), true);
    if (!one.has_value()) return nb::none();
    known.lists.emplace_back(nb::borrow(name), std::move(*one));
  }
  return nb::cast(std::move(known));
}

bool are_unchanged(const KnownMask& known, nb::handle lists) {
  if (!PyDict_Check(lists.ptr())) return false;
  if (known.lists.empty() && PyDict_Size(lists.ptr()) == 0) return true;
  for (const nb::object& name : known.absent)
    if (PyDict_GetItemWithError(lists.ptr(), name.ptr()) != nullptr) return false;
  return std::all_of(known.lists.begin(), known.lists.end(), [&](const auto& one) {
    const nb::handle now = PyDict_GetItemWithError(lists.ptr(), one.first.ptr());
    if (!now.is_valid() || one.second.tensor.is_none()) return now.is(one.second.tensor);
    const std::optional<TensorView> view = plain_tensor(now);
    return view.has_value() && one.second.is_there(now, *view);
  });
}

// The KnownMask of a mask that is unchanged; otherwise null.
nb::object find_mask(nb::handle mask) {
  struct MaskNames {
    nb::str known{"_quick"}, lengths{"seq_lengths"}, size{"BLOCK_SIZE"}, rule{"mask_mod"};
    nb::str lists{"_lists"};
  };
  static const auto* const names = new MaskNames();
  nb::object found = attribute_or_null(mask, names->known);
  if (!found.is_valid() || !nb::isinstance<KnownMask>(found)) return {};
  const auto& known = nb::cast<const KnownMask&>(found);
  const nb::object lists = attribute_or_null(mask, names->lists);
  const nb::object rule = attribute_or_null(mask, names->rule);
  if (!attribute_or_null(mask, names->lengths).is(known.seq_lengths) ||
      !attribute_or_null(mask, names->size).is(known.block_size) || !lists.is_valid() ||
      !rule.is_valid() || !are_unchanged(known, lists))
    return {};
  ReadTensors read;
  if (!known.guard.holds(rule, read) || read.tensors.size() != known.reads.size()) return {};
  for (std::size_t i = 0; i < read.tensors.size(); ++i)
    if (!known.reads[i].is_there(read.tensors[i], read.views[i])) return {};
  return found;
}

// ---- the call

// Whether memory is filled without gaps in the order of the strides: then torch's result for such a
// query has the same strides. Of equal strides the later axis is the inner one.
bool is_dense_in_order(const TensorView& view) {
  std::array<std::size_t, 4> order{3, 2, 1, 0};
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return view.strides()[a] < view.strides()[b];
  });
  std::int64_t step = 1;
  for (const std::size_t axis : order) {
    if (view.strides()[axis] != step) return false;
    step *= view.shape()[axis];
  }
  return view.strides()[3] == 1;
}

bool is_half_or_single(DType dtype) { return is_floating(dtype) && dtype != DType::f64; }

// The checks of flex_attention.py that ordinary calls need. mask: null if there is none.
bool fit(const TensorView& q, const TensorView& k, const TensorView& v, bool enable_gqa,
         const BlockMask* mask) {
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) return false;
  if (!is_half_or_single(q.dtype()) || !is_half_or_single(k.dtype()) ||
      !is_half_or_single(v.dtype()))
    return false;
  const Shape &a = q.shape(), &b = k.shape(), &c = v.shape();
  const bool heads = a[1] == b[1] || (enable_gqa && b[1] != 0 && a[1] % b[1] == 0);
  const bool has_lengths = mask == nullptr || mask->seq_lengths() == std::pair(a[2], b[2]);
  const bool batches = a[0] == b[0] || (b[0] == 1 && mask != nullptr && mask->batch() == a[0]);
  return has_lengths && batches && heads && a[3] == b[3] && b[0] == c[0] && b[1] == c[1] &&
         b[2] == c[2] && q.numel() > 0 && c[3] == a[3] && a[3] <= AttentionProblem().most_dims &&
         k.strides()[3] == 1 && v.strides()[3] == 1 && is_dense_in_order(q);
}

// The mod over the memory of this call, which the caller's function owns.
ScoreMod with_memory(const GuardedMod& known, const std::vector<TensorView>& views) {
  std::vector<Buffer> buffers = known.mod->formula().buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    buffers[i] =
        Buffer::borrow(views[known.order[i]],
                       {.name = buffers[i].name(), .is_page_table = buffers[i].is_page_table()});
  return ScoreMod(known.mod->formula().with_buffers(std::move(buffers)));
}

nb::object quick_attention(nb::handle query, nb::handle key, nb::handle value, nb::handle score_mod,
                           nb::handle block_mask, nb::handle scale, nb::handle enable_gqa,
                           KeptPlan& plain) {
  const bool is_gqa = enable_gqa.ptr() == Py_True;
  if (!PyBool_Check(enable_gqa.ptr()) || !is_torch_plain()) return nb::none();
  nb::object found;
  const KnownMask* mask = nullptr;
  if (!block_mask.is_none()) {
    found = find_mask(block_mask);
    if (!found.is_valid()) return nb::none();
    mask = &nb::cast<const KnownMask&>(found);
  }
  const std::optional<TensorView> q = plain_tensor(query), k = plain_tensor(key),
                                  v = plain_tensor(value);
  if (!q || !k || !v || !fit(*q, *k, *v, is_gqa, mask == nullptr ? nullptr : &mask->core))
    return nb::none();
  const bool records = is_grad_enabled();
  if (records && (requires_grad(query) || requires_grad(key) || requires_grad(value)))
    return nb::none();
  PlanKey of{.shape = AttentionShape::of(*q, *k, *v)};
  if (mask != nullptr) of.mask = &mask->core.data();
  if (!scale.is_none()) {
    if (!PyFloat_CheckExact(scale.ptr())) return nb::none();
    of.scale = PyFloat_AsDouble(scale.ptr());
  }
  ReadTensors read;
  std::shared_ptr<const GuardedMod> mod;
  if (!score_mod.is_none()) {
    mod = find_score_mod(score_mod, read);
    if (mod == nullptr) return nb::none();
    const auto learns = [](const nb::object& tensor) { return requires_grad(tensor); };
    if (records && std::any_of(read.tensors.begin(), read.tensors.end(), learns)) return nb::none();
    of.mod = mod->mod;
    for (const std::size_t i : mod->order) of.reads.emplace_back(read.views[i]);
  }
  const int threads = torch_threads();
  nb::object out = new_like(query);
  const std::optional<TensorView> to = borrow_tensor(out);
  if (!to.has_value()) return nb::none();
  KeptPlan& kept = mask == nullptr ? plain : nb::cast<KeptPlan&>(mask->kept_plan);
  const auto problem = [&] {
    AttentionOptions options{.scale = of.scale, .enable_gqa = true};
    if (mod != nullptr) options.score_mod = with_memory(*mod, read.views);
    if (mask != nullptr) options.block_mask = mask->core;
    return AttentionProblem::dense(of.shape, options);
  };
  const ReleasedGil released;
  kept.run(of, problem, openmp_executor(threads), *q, *k, *v, {.out = *to});
  return out;
}

}  // namespace

void register_quick_call(nb::module_& module) {
  // NOLINTNEXTLINE(bugprone-unused-raii): registers the class.
  nb::class_<KnownMask>(module, "KnownMask", "What quick_attention knows of a mask.");
  module.def("know_mask", &know_mask, nb::arg("core"), nb::arg("kept_plan"), nb::arg("steps"),
             nb::arg("reads"), nb::arg("are_fixed"), nb::arg("seq_lengths"), nb::arg("block_size"),
             nb::arg("names"), nb::arg("lists"),
             "A KnownMask, or None if somebody may edit its tensors unnoticed.");
  module.def("learn_score_mod", &learn_score_mod, nb::arg("code"), nb::arg("steps"), nb::arg("mod"),
             nb::arg("order"),
             "Functions of this code for which the steps hold (ModGuard) are this mod; order: the "
             "tensor of each buffer, among those of the steps.");
  module.def("quick_attention", &quick_attention, nb::arg("query").none(), nb::arg("key").none(),
             nb::arg("value").none(), nb::arg("score_mod").none(), nb::arg("block_mask").none(),
             nb::arg("scale").none(), nb::arg("enable_gqa"), nb::arg("plain"),
             "flex_attention over torch tensors where nothing is new; None where something is. "
             "plain: keeps plans of calls without a mask.");
}

}  // namespace quire::python
