// The sites of Derivatives summed up into dense gradients at one point, as a backward pass would.
// Tests only.
#pragma once
#include <optional>
#include <vector>

#include "formula/gradient/differentiate.h"
#include "reference/buffer_index.h"
#include "reference/evaluate.h"
#include "tests/support/point_gradient.h"

namespace quire::formula {

class SiteGradients {
 public:
  explicit SiteGradients(const Derivatives& derivatives)
      : derivatives_(derivatives), values_(derivatives.graph, roots_of(derivatives)) {}

  /// Per buffer of the derivatives' graph, row-major; empty for buffers that want no gradient.
  const reference::BufferGradients& run(const reference::Point& point) {
    values_.run(point);
    gradients_ = zero_gradients(derivatives_.graph, reference::WhichBuffers::kWantGradient);
    for (const Derivatives::Site& site : derivatives_.sites) add(site);
    return gradients_;
  }

  // About the last point:
  const reference::Evaluator& values() const { return values_; }
  double d_score() const { return values_[derivatives_.d_score].f; }
  /// The row-major position of the first element a site reads.
  std::optional<std::int64_t> some_element(const Derivatives::Site& site) const {
    const auto at = values_.place(site.node, static_cast<std::size_t>(site.side));
    const Shape& shape = derivatives_.graph.buffer(site.buffer).view().shape();
    if (at.nowhere || reference::trailing_count(shape, at.indices.rank()) == 0) return std::nullopt;
    return reference::row_major(shape, reference::with_trailing(shape, at.indices, 0));
  }

 private:
  static std::vector<NodeId> roots_of(const Derivatives& d) {
    std::vector<NodeId> roots = {d.value, d.d_score};
    for (const Derivatives::Site& site : d.sites) {
      roots.push_back(site.node);
      roots.push_back(site.factor);
    }
    return roots;
  }

  void add(const Derivatives::Site& site) {
    const Graph& graph = derivatives_.graph;
    const auto own = static_cast<std::size_t>(site.side);
    const double factor = values_[site.factor].f;
    const auto at = values_.place(site.node, own);
    if (at.nowhere) return;
    const Shape& shape = graph.buffer(site.buffer).view().shape();
    auto& gradient = gradients_[static_cast<std::size_t>(site.buffer)];
    for (std::int64_t k = 0; k < reference::trailing_count(shape, at.indices.rank()); ++k) {
      double amount = factor;
      if (graph[site.node].op == Op::kDot) {
        const auto other_at = values_.place(site.node, 1 - own);
        const auto& other = graph.buffer(graph[site.node].buffers[1 - own]).view();
        if (other_at.nowhere) return;
        amount *= other.load_float(reference::with_trailing(other.shape(), other_at.indices, k));
      }
      gradient[static_cast<std::size_t>(
          reference::row_major(shape, reference::with_trailing(shape, at.indices, k)))] += amount;
    }
  }

  const Derivatives& derivatives_;
  reference::Evaluator values_;
  reference::BufferGradients gradients_;
};

}  // namespace quire::formula
