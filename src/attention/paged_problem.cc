// A problem over paged keys: page table and lengths are read once, checked and turned into a
// layout. Attention layer.
#include <memory>
#include <utility>

#include "attention/jagged_batch.h"
#include "attention/validate.h"
#include "layout/page_table.h"
#include "layout/paged_layout.h"
#include "quire/error.h"
#include "quire/paged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

void check_pools(const char* where, const PagedKeys& keys) {
  for (const ConstTensorView* view : {&keys.k.data, &keys.v.data}) {
    if (view->rank() != 4) {
      fail(ErrorKind::value, where,
           "paged keys and values must be [pages, heads, page_size, dim]; got {}",
           to_string(view->shape()));
    }
  }
  if (keys.k.data.dim(0) != keys.v.data.dim(0) || keys.k.data.dim(1) != keys.v.data.dim(1) ||
      keys.k.data.dim(2) != keys.v.data.dim(2)) {
    fail(ErrorKind::value, where,
         "key and value must have the same pages, heads and page size; got {} and {}",
         to_string(keys.k.shape()), to_string(keys.v.shape()));
  }
  if (keys.k.data.dim(2) < 1)
    fail(ErrorKind::value, where, "the page size must be at least 1; got 0");
}

template <class View>
View view_as_pages(const View& cache, std::int64_t page_size) {
  const bool fits =
      cache.rank() == 4 && cache.dim(0) == 1 && page_size >= 1 && cache.dim(2) % page_size == 0;
  if (!fits) {
    fail(ErrorKind::value, "pages_of",
         "a cache must be [1, heads, pages * page_size, dim]; got {} and a page size of {}",
         to_string(cache.shape()), page_size);
  }
  const Shape& strides = cache.strides();
  return {cache.data(),
          cache.dtype(),
          {cache.dim(2) / page_size, cache.dim(1), page_size, cache.dim(3)},
          {strides[2] * page_size, strides[1], strides[2], strides[3]}};
}

}  // namespace

ConstTensorView pages_of(const ConstTensorView& cache, std::int64_t page_size) {
  return view_as_pages(cache, page_size);
}

TensorView pages_of(const TensorView& cache, std::int64_t page_size) {
  return view_as_pages(cache, page_size);
}

namespace {

// The part of a problem that follows from keys, values and table; heads, dim and dtype of the
// queries are set later.
AttentionProblem problem_of_keys(const PagedKeys& keys, std::int64_t batch,
                                 const AttentionOptions& options, const char* function) {
  layout::PageTable table = layout::read_page_table(function, {.page_table = keys.page_table,
                                                               .lengths = keys.lengths,
                                                               .batch = batch,
                                                               .pool_pages = keys.k.data.dim(0),
                                                               .page_size = keys.k.data.dim(2)});
  AttentionProblem problem{{.batch = batch,
                            .kv_batch = batch,
                            .kv_heads = keys.k.data.dim(1),
                            .kv_len = table.longest,
                            .v_head_dim = keys.v.shape()[3],
                            .k_dtype = keys.k.dtype(),
                            .v_dtype = keys.v.dtype(),
                            .k_format = keys.k.format,
                            .v_format = keys.v.format},
                           options,
                           function};
  problem.k_shape = keys.k.shape();
  problem.v_shape = keys.v.shape();
  const bool heads_are_apart = keys.k.data.stride(1) > keys.k.data.stride(0);
  problem.layout = std::make_shared<layout::PagedLayout>(keys.k.data.dim(2), std::move(table.pages),
                                                         table.lengths, heads_are_apart);
  return problem;
}

}  // namespace

AttentionProblem AttentionProblem::paged(const ConstTensorView& q, const PagedKeys& keys,
                                         const AttentionOptions& options, const char* function) {
  const FloatEnv float_env;
  check_pools(function, keys);
  if (q.rank() != 4) {
    fail(ErrorKind::value, function, "query must be [batch, heads, length, dim]; got {}",
         to_string(q.shape()));
  }
  attention::check_head_dims(function, q.dim(3), keys.k.shape()[3]);
  AttentionProblem problem = problem_of_keys(keys, q.dim(0), options, function);
  problem.q_heads = q.dim(1);
  problem.q_len = q.dim(2);
  problem.head_dim = q.dim(3);
  problem.q_dtype = q.dtype();
  problem.q_shape = q.shape();
  return problem;
}

AttentionProblem AttentionProblem::paged(const Jagged& q, const PagedKeys& keys,
                                         const AttentionOptions& options, const char* function) {
  const FloatEnv float_env;
  check_pools(function, keys);
  attention::JaggedSequences rows = attention::read_sequences(function, "query", q);
  attention::check_head_dims(function, rows.dim, keys.k.shape()[3]);
  AttentionProblem problem = problem_of_keys(keys, rows.count(), options, function);
  problem.q_heads = rows.heads;
  problem.q_len = rows.longest;
  problem.head_dim = rows.dim;
  problem.q_dtype = q.values.dtype();
  problem.q_shape = q.values.shape();
  problem.q_order = q.order;
  problem.queries = std::make_shared<layout::JaggedQueries>(std::move(rows.rows));
  return problem;
}

}  // namespace quire
