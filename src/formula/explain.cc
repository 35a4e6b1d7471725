// explain: everything the library derives from a formula, as text. Formula layer.
#include "quire/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "formula/bound/depends.h"
#include "formula/compile/compile.h"
#include "formula/compile/disassemble.h"
#include "formula/gradient/differentiate.h"
#include "formula/graph.h"
#include "formula/op_table.h"
#include "formula/simplify/simplify.h"
#include "formula/text/print.h"
#include "formula/type_rules.h"
#include "quire/mod.h"
#include "runtime/float_env.h"

namespace quire {

using namespace formula;

namespace {

constexpr std::size_t kMaxListed = 200;  // more values than this are not listed

std::string buffers_text(const Formula& formula) {
  std::string text;
  for (const Buffer& buffer : formula.buffers())
    text +=
        fmt::format("  {} {}{}{}\n", buffer.name(), dtype_name(buffer.dtype()),
                    to_string(buffer.shape()), buffer.has_data() ? "" : "  (declared, no data)");
  return text;
}

// "slopes[h]", with "[...]" for axes that are summed over.
std::string site_text(const Derivatives& d, const Derivatives::Site& site) {
  const Node& node = d.graph[site.node];
  const auto args = d.graph.args(site.node);
  const std::size_t begin = site.side == 0 ? 0 : node.split;
  const std::size_t end = node.op == Op::kDot && site.side == 0 ? node.split : args.size();
  std::string indices;
  for (std::size_t i = begin; i < end; ++i)
    indices += (i > begin ? ", " : "") + print(d.graph, args[i]);
  if (node.op != Op::kLoad) indices += indices.empty() ? "..." : ", ...";
  return fmt::format("{}[{}]", d.graph.buffer(site.buffer).name(), indices);
}

std::string derivatives_text(const Formula& formula, Precision precision) {
  const Derivatives d = differentiate(formula, precision, GradientBuffers::kAllFloats);
  std::string text =
      fmt::format("  d score{}= {}\n", std::string(12, ' '), print(d.graph, d.d_score));
  for (const Derivatives::Site& site : d.sites) {
    std::string factor = print(d.graph, site.factor);
    if (d.graph[site.node].op == Op::kDot)
      factor +=
          fmt::format(" * {}[..., i]",
                      d.graph.buffer(d.graph[site.node].buffers[site.side == 0 ? 1 : 0]).name());
    text += fmt::format("  d {:<16} = {}\n", site_text(d, site), factor);
  }
  return text;
}

std::string values_text(const Formula& formula) {
  const Graph& graph = formula.graph();
  const std::vector<Depends> classes = depends(graph);
  std::string text;
  for (std::size_t i = 0; i < std::min(graph.size(), kMaxListed); ++i) {
    const auto id = static_cast<NodeId>(i);
    text += fmt::format("  {:<9} {:<6} {}\n", dependence_name(classes[i].dependence),
                        type_name(graph[id].type), print(graph, id));
  }
  if (graph.size() > kMaxListed)
    text += fmt::format("  ... and {} more\n", graph.size() - kMaxListed);
  return text;
}

kernels::TileProgram program_of(const Formula& formula, const ExplainOptions& options) {
  const auto range = [](std::int64_t size) {
    return IndexRange{0, std::max<std::int64_t>(size, 1) - 1};
  };
  CompileOptions how{.precision = options.precision,
                     .extents = {range(options.batch), range(options.heads), range(options.q_len),
                                 range(options.kv_len)}};
  how.allow_declared = true;
  if (options.decode) {
    how.vary[1] = kernels::Vary::kRowList;
    how.vary[2] = kernels::Vary::kRowList;
    how.vary[3] = kernels::Vary::kLaneRange;
    how.max_rows = 12;
    how.groups = 4;
    how.max_per_row = true;
  }
  if (formula.type() == ValueType::kBool)
    return compile({.mask_mod = &formula, .mask_only = true}, how);
  return compile({.score_mod = &formula}, how);
}

}  // namespace

std::string explain(const Formula& given, const ExplainOptions& options) {
  const FloatEnv float_env;
  const bool mask = given.type() == ValueType::kBool;
  const Formula formula = mask ? MaskMod(given).formula() : ScoreMod(given).formula();
  const Formula simple = simplify(formula, options.precision);
  std::string text =
      fmt::format("{}\n  {}\n", mask ? "mask mod" : "score mod", formula.to_string());
  text += fmt::format("simplified\n  {}\n", simple.to_string());
  if (const std::string buffers = buffers_text(simple); !buffers.empty())
    text += "buffers\n" + buffers;
  if (!mask) text += "derivatives\n" + derivatives_text(simple, options.precision);
  text += "values: what each varies with\n" + values_text(simple);
  text += options.decode ? "tile program: 256 keys across the lanes, (head, query) pairs as rows\n"
                         : "tile program: 64 queries across the lanes, 256 keys as rows\n";
  return text + disassemble(program_of(simple, options));
}

}  // namespace quire
