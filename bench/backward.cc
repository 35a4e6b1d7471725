// flex_attention_backward as a share of the multiply-adds the machine could have done meanwhile (10
// * D operations a visible pair), and in times of the forward. Peak, forward and backward are timed
// in turn; medians.
//
//   backward [group ...] [--only TEXT] [--threads N] [--repetitions N]
//   groups: full causal dims strided dtypes masks heads gradients memory scaling
//
// QUIRE_ISA=avx2 backward full: the share is that of the ISA's own peak.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"
#include "bench/settings.h"
#include "quire/flex_attention_backward.h"

namespace quire::bench {
namespace {

// A forward and a backward of one problem, planned once.
class Pass {
 public:
  Pass(const Problem& problem, int threads)
      : executor_(make_thread_pool(threads)), tensors_(problem) {
    tensors_.options.executor = executor_.get();
    const AttentionShape shape =
        AttentionShape::of(tensors_.q_view, tensors_.k_view, tensors_.v_view);
    forward_.emplace(shape, tensors_.options);
    backward_.emplace(shape, FlexAttentionBackwardOptions{.forward = tensors_.options});
    lse_ = Tensor::empty({shape.batch, shape.q_heads, shape.q_len}, forward_->compute_type());
    d_out_ = Tensor::empty({shape.batch, shape.q_heads, shape.q_len, shape.v_head_dim}, DType::f32);
    fill(d_out_, 4);
    d_out_ = d_out_.to(problem.q_dtype);
    for (const ConstTensorView* view : {&tensors_.q_view, &tensors_.k_view, &tensors_.v_view})
      gradients_.push_back(Tensor::empty(view->shape(), view->dtype()));
    for (const Buffer& buffer : backward_->buffers()) {
      buffers_.push_back(Tensor::empty(buffer.shape(), buffer.dtype()));
      buffer_views_.push_back(buffers_.back().view());
    }
  }

  void forward() {
    forward_->run(tensors_.q_view, tensors_.k_view, tensors_.v_view,
                  {.out = tensors_.out.view(), .lse = lse_.view()});
  }
  void backward() {
    backward_->run({.q = tensors_.q_view,
                    .k = tensors_.k_view,
                    .v = tensors_.v_view,
                    .out = tensors_.out,
                    .lse = lse_,
                    .d_out = d_out_},
                   {.q = gradients_[0].view(),
                    .k = gradients_[1].view(),
                    .v = gradients_[2].view(),
                    .buffers = buffer_views_});
  }
  Executor& executor() { return *executor_; }
  std::size_t scratch_bytes() const { return backward_->scratch_bytes(); }

 private:
  std::shared_ptr<Executor> executor_;
  ProblemTensors tensors_;
  std::optional<AttentionPlan> forward_;
  std::optional<AttentionBackwardPlan> backward_;
  Tensor lse_, d_out_;
  std::vector<Tensor> gradients_, buffers_;
  std::vector<TensorView> buffer_views_;
};

// Five products: two over the head dim of values, three over that of keys.
double backward_flops(const Problem& p) {
  return 2 * static_cast<double>(p.batch * p.q_heads) * p.pairs() *
         static_cast<double>(3 * p.head_dim + 2 * p.v_head_dim);
}

template <class Call>
double seconds_of(Call call, int inner) {
  const double start = now();
  for (int i = 0; i < inner; ++i) call();
  return (now() - start) / inner;
}

// Milliseconds of the backward.
double measure(const Problem& problem, const std::string& group, const Settings& settings) {
  Pass pass(problem, settings.threads);
  pass.forward();
  pass.backward();
  const double once = seconds_of([&] { pass.backward(); }, 1);
  const int inner = static_cast<int>(std::clamp(0.02 / once, 1.0, 1000.0));
  std::vector<double> times, shares, ratios;
  for (int i = 0; i < settings.repetitions; ++i) {
    const double before = peak(pass.executor(), false);
    const double backward = seconds_of([&] { pass.backward(); }, inner);
    const double after = peak(pass.executor(), false);
    const double forward = seconds_of([&] { pass.forward(); }, inner);
    times.push_back(backward);
    shares.push_back(backward_flops(problem) / backward / ((before + after) / 2));
    ratios.push_back(backward / forward);
  }
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  fmt::print("{:8} {:52} {:9.3f} ms  {:5.3f} of peak ({:.3f}-{:.3f})  {:5.2f} forwards\n", group,
             problem.name(), median(times) * 1e3, median(shares), *low, *high, median(ratios));
  std::fflush(stdout);
  return median(times) * 1e3;
}

struct Entry {
  std::string group;
  Problem problem;
};

Problem square(std::int64_t length, std::int64_t dim) {
  Problem p;
  p.q_len = p.kv_len = length;
  p.head_dim = p.v_head_dim = dim;
  if (length > 2048) p.q_heads = p.kv_heads = 4;
  return p;
}

std::vector<Entry> entries() {
  std::vector<Entry> all;
  for (const std::int64_t length : {512, 2048, 4096}) {
    for (const std::int64_t dim : {64, 128}) {
      Problem p = square(length, dim);
      all.push_back({"full", p});
      p.mask = "causal";
      all.push_back({"causal", p});
    }
  }
  for (const std::int64_t dim : {16, 40, 80, 256}) all.push_back({"dims", square(2048, dim)});
  for (const std::int64_t dim : {64, 128}) {
    Problem p = square(2048, dim);
    p.heads_inside = true;
    all.push_back({"strided", p});
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem p = square(2048, 64);
    p.q_dtype = p.k_dtype = p.v_dtype = dtype;
    all.push_back({"dtypes", p});
  }
  for (const char* mask : {"window 256", "document"}) {
    Problem p = square(4096, 64);
    p.mask = mask;
    all.push_back({"masks", p});
  }
  Problem grouped = square(2048, 64);
  grouped.kv_heads = 4;
  all.push_back({"heads", grouped});
  Problem one = square(4096, 64);
  one.q_heads = one.kv_heads = 1;
  all.push_back({"heads", one});
  one.mask = "causal";
  all.push_back({"heads", one});
  return all;
}

// Backward with gradients of captured buffers, in times of the backward without a score mod, which
// is timed in turn with it; and how much faster it is with all threads than with one.
void compare_gradients(const Settings& settings) {
  for (const std::int64_t dim : {64, 128}) {
    const Problem plain = square(2048, dim);
    for (const std::string& name : gradient_mod_names()) {
      Problem with = plain;
      with.score = "d " + name;
      if (with.name().find(settings.only) == std::string::npos) continue;
      Pass base(plain, settings.threads), all(with, settings.threads), one(with, 1);
      std::vector<double> ratios, gains, times;
      for (Pass* pass : {&base, &all, &one}) {
        pass->forward();
        pass->backward();
      }
      for (int i = 0; i < settings.repetitions; ++i) {
        const double before = seconds_of([&] { base.backward(); }, 1);
        times.push_back(seconds_of([&] { all.backward(); }, 1));
        const double alone = seconds_of([&] { one.backward(); }, 1);
        ratios.push_back(times.back() / before);
        gains.push_back(alone / times.back());
      }
      fmt::print(
          "gradients {:44} {:9.3f} ms  {:5.3f} backwards without  1 -> {}: {:.2f}  {:.1f} MB\n",
          with.name(), median(times) * 1e3, median(ratios), settings.threads, median(gains),
          static_cast<double>(all.scratch_bytes()) * 1e-6);
      std::fflush(stdout);
    }
  }
}

// Scratch against q, k, v and out.
void print_memory(const Settings& settings) {
  Problem p = square(16384, 64);
  p.q_heads = p.kv_heads = 8;
  const double tensors = 4.0 * 8 * 16384 * 64 * 4;
  for (const char* mask : {"", "causal"}) {
    p.mask = mask;
    Pass pass(p, settings.threads);
    fmt::print("memory   {:52} {:9.1f} MB of scratch, {:.3f} of q + k + v + out\n", p.name(),
               static_cast<double>(pass.scratch_bytes()) * 1e-6,
               static_cast<double>(pass.scratch_bytes()) / tensors);
  }
}

int run(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  print_head(settings);
  for (const Entry& entry : entries())
    if (settings.wants(entry.group, entry.problem.name()))
      measure(entry.problem, entry.group, settings);
  if (settings.wants("gradients")) compare_gradients(settings);
  if (settings.wants("memory")) print_memory(settings);
  if (settings.wants("scaling")) {
    Settings one = settings;
    one.threads = 1;
    Problem problem = square(4096, 64);
    for (const std::int64_t heads : {16, 1}) {
      problem.q_heads = problem.kv_heads = heads;
      const double alone = measure(problem, "scaling", one);
      const double both = measure(problem, "scaling", settings);
      fmt::print("scaling  1 -> {} threads: {:.2f} times as fast\n", settings.threads,
                 alone / both);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }
