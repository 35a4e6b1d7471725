// context_parallel: shards, attention over ranks, and a Communicator whose transfers are done by an
// object of Python. Python layer.
#include "context_parallel.h"

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "gil.h"
#include "openmp.h"
#include "quire/context_parallel.h"
#include "view.h"

namespace quire::python {
namespace {

namespace cp = context_parallel;

// Methods of `group`: rank(), size(), isend(bytes, to, tag) and irecv(bytes, from, tag), which
// return an object with wait(), and all_gather(bytes, all bytes). Bytes are Views, which own their
// memory.
class PythonCommunicator final : public Communicator {
 public:
  /// Needs the GIL, as the destructor does; everything else acquires it.
  explicit PythonCommunicator(nb::object group)
      : group_(std::move(group)),
        rank_(nb::cast<int>(group_.attr("rank")())),
        size_(nb::cast<int>(group_.attr("size")())) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket isend(const Message& message, int to, int tag) override {
    return begin("isend", message, to, tag);
  }
  Ticket irecv(const Message& message, int from, int tag) override {
    return begin("irecv", message, from, tag);
  }
  void wait(Ticket ticket) override {
    const nb::gil_scoped_acquire gil;
    const auto node = under_way_.extract(ticket);
    node.mapped().attr("wait")();
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const Message given = Message::make(mine.size()), gathered = Message::make(all.size());
    std::memcpy(given.data, mine.data(), mine.size());
    {
      const nb::gil_scoped_acquire gil;
      group_.attr("all_gather")(view_of(given), view_of(gathered));
    }
    std::memcpy(all.data(), gathered.data, all.size());
  }

 private:
  static View view_of(const Message& message) {
    auto* const owner = new std::shared_ptr<void>(message.owner);
    return {TensorView(message.data, DType::u8, {static_cast<std::int64_t>(message.size)}),
            nb::capsule(owner, [](void* held) noexcept {
              delete static_cast<std::shared_ptr<void>*>(held);
            })};
  }
  Ticket begin(const char* method, const Message& message, int other, int tag) {
    const nb::gil_scoped_acquire gil;
    under_way_.emplace(next_, group_.attr(method)(view_of(message), other, tag));
    return next_++;
  }

  nb::object group_;
  int rank_, size_;
  Ticket next_ = 0;
  std::map<Ticket, nb::object> under_way_;
};

// What all calls share. The communicator is made and destroyed with the GIL held; the work runs
// without it.
struct RanksCall {
  cp::Options options;
  std::shared_ptr<Executor> executor;
};

// Behind the tensors of a call: scale, enable_gqa, exchange, openmp_threads.
using RanksOptions = std::tuple<std::optional<double>, bool, cp::Exchange, int>;

RanksCall prepare_ranks(const ScoreMod* score_mod, const BlockMask* block_mask,
                        const RanksOptions& given) {
  const auto& [scale, enable_gqa, exchange, openmp_threads] = given;
  RanksCall made{.options = {.scale = scale, .enable_gqa = enable_gqa, .exchange = exchange},
                 .executor = openmp_executor(openmp_threads)};
  if (score_mod != nullptr) made.options.score_mod = *score_mod;
  if (block_mask != nullptr) made.options.block_mask = *block_mask;
  made.options.executor = made.executor.get();
  return made;
}

std::pair<View, View> attend_over_ranks(const View& q, const View& k, const View& v,
                                        const cp::Shards& shards, nb::object group,
                                        const ScoreMod* score_mod, const BlockMask* block_mask,
                                        const RanksOptions& options) {
  PythonCommunicator communicator(std::move(group));
  const RanksCall call = prepare_ranks(score_mod, block_mask, options);
  cp::Output made;
  {
    const ReleasedGil released;
    made = cp::flex_attention(q.tensor, k.tensor, v.tensor, shards, communicator, call.options);
  }
  return {view_of(std::move(made.out)), view_of(std::move(made.lse))};
}

// (out, lse, d_out or None, d_lse or None)
using RanksLoss = std::tuple<View, View, std::optional<View>, std::optional<View>>;

std::vector<View> backward_over_ranks(const View& q, const View& k, const View& v,
                                      const RanksLoss& loss, const cp::Shards& shards,
                                      nb::object group, const ScoreMod* score_mod,
                                      const BlockMask* block_mask, const RanksOptions& options) {
  PythonCommunicator communicator(std::move(group));
  const RanksCall call = prepare_ranks(score_mod, block_mask, options);
  const auto& [out, lse, d_out, d_lse] = loss;
  cp::BackwardInputs inputs{
      .q = q.tensor, .k = k.tensor, .v = v.tensor, .out = out.tensor, .lse = lse.tensor};
  if (d_out.has_value()) inputs.d_out = d_out->tensor;
  if (d_lse.has_value()) inputs.d_lse = d_lse->tensor;
  cp::Gradients made;
  {
    const ReleasedGil released;
    made = cp::flex_attention_backward(inputs, shards, communicator, call.options);
  }
  std::vector<View> all;
  for (Tensor* one : {&made.q, &made.k, &made.v}) all.push_back(view_of(std::move(*one)));
  for (Tensor& one : made.buffers) all.push_back(view_of(std::move(one)));
  return all;
}

// Tells the other ranks of a call that this one will not take part: they throw Error with this
// text.
void refuse_over_ranks(nb::object group, const std::string& function, const std::string& text) {
  PythonCommunicator communicator(std::move(group));
  const ReleasedGil released;
  cp::refuse(function.c_str(), communicator, text);
}

// Decode over keys in pages: (k pages, v pages, page table, lengths).
using RanksPages = std::tuple<View, View, View, View>;

std::pair<View, View> decode_over_ranks(const View& q, const RanksPages& pages,
                                        const std::vector<cp::Shards>& shards, nb::object group,
                                        const ScoreMod* score_mod, const MaskMod* mask_mod,
                                        std::optional<double> scale,
                                        const std::vector<std::int64_t>& q_begin, bool is_exact,
                                        int openmp_threads) {
  PythonCommunicator communicator(std::move(group));
  const std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
  cp::AttendOptions options{.scale = scale,
                            .q_begin = q_begin,
                            .mode = is_exact ? cp::AttendMode::kExact : cp::AttendMode::kMerged,
                            .executor = executor.get()};
  if (score_mod != nullptr) options.score_mod = *score_mod;
  if (mask_mod != nullptr) options.mask_mod = *mask_mod;
  const auto& [k, v, table, lengths] = pages;
  const PagedKeys keys{k.keys(), v.keys(), table.tensor, lengths.tensor};
  cp::Output made;
  {
    const ReleasedGil released;
    made = cp::attend(q.tensor, keys, shards, communicator, options);
  }
  return {view_of(std::move(made.out)), view_of(std::move(made.lse))};
}

cp::Shards shards_of(const BlockMask* mask, std::int64_t length, int ranks,
                     std::int64_t piece_length) {
  const cp::ShardOptions options{.piece_length = piece_length};
  const ReleasedGil released;
  return mask != nullptr ? cp::plan_shards(*mask, ranks, options)
                         : cp::plan_shards(length, ranks, options);
}

nb::dict report_of_shards(const cp::Shards& shards, const BlockMask& mask) {
  const cp::ShardReport made = cp::report(shards, mask);
  nb::dict all;
  all["pairs"] = made.pairs;
  all["tokens"] = made.tokens;
  all["received"] = made.received;
  all["balance"] = made.balance;
  all["token_balance"] = made.token_balance;
  all["share_of_gathering"] = made.share_of_gathering;
  return all;
}

std::tuple<std::int64_t, std::int64_t, std::int64_t> traffic_of_shards(const cp::Shards& shards,
                                                                       const BlockMask* mask,
                                                                       const View& q, const View& k,
                                                                       const View& v,
                                                                       cp::Exchange exchange) {
  const AttentionShape shape = AttentionShape::of(q.tensor, k.tensor, v.tensor);
  const cp::Traffic made =
      cp::traffic(shards, mask != nullptr ? std::optional(*mask) : std::nullopt, shape, exchange);
  return {made.forward, made.backward, made.gathering};
}

}  // namespace

void register_context_parallel(nb::module_& module) {
  nb::class_<cp::Shards>(module, "Shards", "Which rank holds which pieces of a sequence.")
      .def(nb::init<std::int64_t, int, std::int64_t, std::vector<int>>(), nb::arg("length"),
           nb::arg("ranks"), nb::arg("piece_length"), nb::arg("owners"))
      .def_prop_ro("length", &cp::Shards::length)
      .def_prop_ro("ranks", &cp::Shards::ranks)
      .def_prop_ro("piece_length", &cp::Shards::piece_length)
      .def_prop_ro("owners", [](const cp::Shards& self) { return self.owners(); })
      .def("tokens", &cp::Shards::tokens, nb::arg("rank"), "How many tokens a rank holds.")
      .def(
          "ranges",
          [](const cp::Shards& self, int rank) {
            std::vector<std::pair<std::int64_t, std::int64_t>> all;
            for (const cp::Range& range : self.ranges(rank))
              all.push_back({range.begin, range.end});
            return all;
          },
          nb::arg("rank"), "(begin, end) of the tokens of a rank, ascending, as few as there are.")
      .def("positions", &cp::Shards::positions, nb::arg("rank"), "The tokens of a rank.")
      .def(nb::self == nb::self)
      .def("__hash__",
           [](const cp::Shards& self) {
             return nb::hash(nb::make_tuple(self.length(), self.ranks(), self.piece_length()));
           })
      .def("__repr__",
           [](const cp::Shards& self) {
             return "Shards(length=" + std::to_string(self.length()) +
                    ", ranks=" + std::to_string(self.ranks()) +
                    ", piece_length=" + std::to_string(self.piece_length()) + ")";
           })
      .def("__reduce__", [](const cp::Shards& self) {
        return nb::make_tuple(
            nb::type<cp::Shards>(),
            nb::make_tuple(self.length(), self.ranks(), self.piece_length(), self.owners()));
      });
  module.def("plan_shards", &shards_of, nb::arg("mask").none(), nb::arg("length"), nb::arg("ranks"),
             nb::arg("piece_length"),
             "Which pieces of a sequence each rank holds: visible pairs of the mask balanced; "
             "pieces of piece_length tokens.");
  module.def("shard_report", &report_of_shards, nb::arg("shards"), nb::arg("mask"),
             "Pairs, tokens and received tokens of each rank under a mask.");
  nb::enum_<cp::Exchange>(module, "Exchange", "What travels between ranks.")
      .value("least", cp::Exchange::kLeast)
      .value("keys", cp::Exchange::kKeys)
      .value("heads", cp::Exchange::kHeads);
  module.def("shard_traffic", &traffic_of_shards, nb::arg("shards"), nb::arg("mask").none(),
             nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("exchange"),
             "Bytes that all ranks send for tensors like these: (forward, backward, what gathering "
             "all keys moves).");
  module.def("context_attention", &attend_over_ranks, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("shards"), nb::arg("group"), nb::arg("score_mod").none(),
             nb::arg("block_mask").none(), nb::arg("options"),
             "(out, lse) of the pieces of queries that this rank holds; keys of others arrive "
             "through the group.");
  module.def("context_backward", &backward_over_ranks, nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("loss"), nb::arg("shards"), nb::arg("group"), nb::arg("score_mod").none(),
             nb::arg("block_mask").none(), nb::arg("options"),
             "Gradients of q, k, v and of the buffers of the score mod, for the pieces that this "
             "rank holds.");
  module.def(
      "context_refuse", &refuse_over_ranks, nb::arg("group"), nb::arg("function"), nb::arg("text"),
      "Tells the other ranks of a call that this one will not take part; they throw this text.");
  module.def("context_attend", &decode_over_ranks, nb::arg("q"), nb::arg("pages"),
             nb::arg("shards"), nb::arg("group"), nb::arg("score_mod").none(),
             nb::arg("mask_mod").none(), nb::arg("scale").none(), nb::arg("q_begin"),
             nb::arg("is_exact"), nb::arg("openmp_threads"),
             "(out, lse) of queries that every rank has, over pages of keys that are spread over "
             "the ranks.");
}

}  // namespace quire::python
