// Lowers the derivatives into one program whose outputs are the slope and, for each read, its
// factor, index and the offset of the other side. Formula layer.
#include "formula/gradient/compile_gradient.h"

#include <algorithm>

#include "formula/compile/emit.h"
#include "formula/compile/low_graph.h"
#include "formula/compile/lower.h"
#include "formula/gradient/differentiate.h"
#include "formula/gradient/gradient_pattern.h"

namespace quire::formula {

using kernels::GradientPattern;
using kernels::GradientSite;
using kernels::SlopeKind;
using kernels::TileClass;
using kernels::TileType;

namespace {

bool is_one(const Graph& graph, NodeId id) {
  return graph[id].op == Op::kFloatConst && graph[id].float_value() == 1;
}

std::int64_t length(const IndexRange& range) {
  return std::max<std::int64_t>(range.last - range.first + 1, 1);
}

class GradientCompiler {
 public:
  GradientCompiler(const Formula& score_mod, const CompileOptions& options, GradientSites sites)
      : options_(options),
        derivatives_(differentiate(score_mod, options.precision)),
        lowering_(low_, options_) {
    low_.all_elements = options.node_by_node;
    std::erase_if(derivatives_.sites, [&](const Derivatives::Site& site) {
      return sites == GradientSites::kNone || reads_nothing(site);
    });
  }

  CompiledGradient run() {
    roots_.score = lowering_.lower(derivatives_.formula(derivatives_.value));
    const std::size_t slope = add_slope();
    for (const Derivatives::Site& site : derivatives_.sites) add_site(site);
    result_.program.tile = emit(low_, roots_, options_);
    const auto output = [&](std::size_t i) { return result_.program.tile.outputs[i]; };
    if (result_.program.slope != SlopeKind::kOne) result_.program.slope_value = output(slope);
    for (std::size_t i = 0; i < result_.program.sites.size(); ++i) {
      GradientSite& site = result_.program.sites[i];
      site.index = output(site_outputs_[i].index);
      if (site.has_factor) site.factor = output(site_outputs_[i].factor);
      if (site.other_buffer >= 0) site.other_offset = output(site_outputs_[i].other);
    }
    return std::move(result_);
  }

 private:
  // Positions of a site's values among the outputs of the program.
  struct SiteOutputs {
    std::size_t factor = 0, index = 0, other = 0;
  };

  const Buffer& buffer_of(const Derivatives::Site& site) const {
    return derivatives_.graph.buffer(site.buffer);
  }

  // A read of an empty buffer, or a dot or sum over no elements, has no gradient.
  bool reads_nothing(const Derivatives::Site& site) const {
    const Node& node = derivatives_.graph[site.node];
    for (const std::int32_t buffer : node.buffers)
      if (buffer >= 0 && element_count(derivatives_.graph.buffer(buffer).shape()) == 0) return true;
    return false;
  }

  std::size_t keep(LowId id) {
    roots_.outputs.push_back(id);
    return roots_.outputs.size() - 1;
  }

  std::size_t add_slope() {
    if (is_one(derivatives_.graph, derivatives_.d_score)) return 0;
    const LowId slope = lowering_.lower(derivatives_.formula(derivatives_.d_score));
    result_.program.slope =
        low_[slope].value_class == TileClass::kUniform ? SlopeKind::kUniform : SlopeKind::kElement;
    return keep(slope);
  }

  int target_of(const Derivatives::Site& site) {
    const Buffer& buffer = buffer_of(site);
    for (std::size_t i = 0; i < result_.targets.size(); ++i)
      if (result_.targets[i].is_same(buffer)) return static_cast<int>(i);
    result_.targets.push_back(buffer);
    result_.program.target_sizes.push_back(element_count(buffer.shape()));
    return static_cast<int>(result_.targets.size()) - 1;
  }

  // Elements per index: those of the axes that are not indexed.
  std::int64_t width_of(const Derivatives::Site& site, std::size_t indices) const {
    const Shape& shape = buffer_of(site).shape();
    std::int64_t width = 1;
    for (std::size_t axis = indices; axis < shape.rank(); ++axis) width *= shape[axis];
    return width;
  }

  std::span<const NodeId> indices_of(const Derivatives::Site& site) const {
    const Node& node = derivatives_.graph[site.node];
    const auto args = derivatives_.graph.args(site.node);
    const std::size_t split = node.op == Op::kDot ? node.split : args.size();
    return site.side == 0 ? args.first(split) : args.subspan(split);
  }

  // Whether one index is b and another h, or there is only one batch or head.
  bool fixes_head(const Derivatives::Site& site) const {
    const auto has = [&](Op op, const IndexRange& range) {
      if (length(range) == 1) return true;
      for (const NodeId index : indices_of(site))
        if (derivatives_.graph[index].op == op) return true;
      return false;
    };
    return has(Op::kBatch, options_.extents.b) && has(Op::kHead, options_.extents.h);
  }

  ReadForm form_of(const Derivatives::Site& site, const LowRead& read, const GradientSite& made) {
    const auto reads = std::count_if(
        derivatives_.sites.begin(), derivatives_.sites.end(),
        [&](const Derivatives::Site& other) { return buffer_of(other).is_same(buffer_of(site)); });
    ReadForm form{.index = low_[read.index].value_class,
                  .is_dot = made.other_buffer >= 0,
                  .is_affine = read.affine.known,
                  .lane_step = read.affine.lane_step,
                  .row_step = read.affine.row_step,
                  .queries = length(options_.extents.q),
                  .keys = length(options_.extents.kv),
                  .reads_one = derivatives_.graph[site.node].op == Op::kLoad,
                  .only_read = reads == 1,
                  .fixes_head = fixes_head(site)};
    if (form.is_dot) form.other = low_[read.other_offset].value_class;
    return form;
  }

  void add_site(const Derivatives::Site& site) {
    GradientSite made{.target = target_of(site), .width = width_of(site, indices_of(site).size())};
    SiteOutputs outputs;
    if (!is_one(derivatives_.graph, site.factor)) {
      made.has_factor = true;
      outputs.factor = keep(lowering_.lower(derivatives_.formula(site.factor)));
    }
    const LowRead read = lowering_.lower_read(derivatives_.formula(site.node), site.side);
    made.other_buffer = read.other_buffer;
    made.pattern = choose_pattern(form_of(site, read, made));
    const bool direct =
        made.pattern == GradientPattern::kOwned || made.pattern == GradientPattern::kShared;
    outputs.index = keep(direct ? read.affine.uniform : read.index);
    made.lane_step = read.affine.lane_step;
    made.row_step = read.affine.row_step;
    if (read.other_offset != kNoLow) outputs.other = keep(read.other_offset);
    result_.program.sites.push_back(made);
    site_outputs_.push_back(outputs);
  }

  const CompileOptions& options_;
  Derivatives derivatives_;
  LowGraph low_;
  Lowering lowering_;
  LowRoots roots_;
  CompiledGradient result_;
  std::vector<SiteOutputs> site_outputs_;
};

}  // namespace

CompiledGradient compile_gradient(const Formula& score_mod, const CompileOptions& options,
                                  GradientSites sites) {
  return GradientCompiler(score_mod, options, sites).run();
}

}  // namespace quire::formula
