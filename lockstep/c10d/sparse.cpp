// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/sparse.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep::c10d {
namespace {

// The number of values of each rank. Compares the tensors' shapes.
std::vector<std::int64_t> values_of_ranks(const at::Tensor& tensor, const ProcessGroup& group,
                                          const CallOptions& options) {
  std::int64_t own = tensor._nnz();
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  const std::string shape = shape_text(tensor) + " sparse " + std::to_string(tensor.sparse_dim());
  group.all_gather({.data = &own, .count = 1, .dtype = DType::int64}, buffer_of(all), {},
                   Labelled(options, shape));
  return all;
}

// All ranks' `rows`, of which rank r has counts[r], one after the other.
at::Tensor all_rows(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                    const ProcessGroup& group, const CallOptions& options) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = 0;
  for (const std::int64_t count : counts) sizes[0] += count;
  const at::Tensor all = at::empty(sizes, rows.options());
  const at::Tensor own = values_of(rows);
  const Buffer to = movable(all);
  Counts elements;
  for (const std::int64_t count : counts)
    elements.push_back(static_cast<std::size_t>(count) * elements_of_row(rows, to.dtype));
  group.all_gather(movable(own), to, elements, options);
  return all;
}

}  // namespace

void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    throw Error(Fault::unsupported,
                "sparse all_reduce: " + std::string(name(op)) + " is not supported");
  const at::Tensor own = tensor.coalesce();
  const auto counts = values_of_ranks(own, group, options);
  const at::Tensor places = all_rows(own._indices().t(), counts, group, options);
  const at::Tensor values = all_rows(own._values(), counts, group, options);
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(places.t(), values, own.sizes(),
                                                 values.options().layout(at::kSparse))
                       .coalesce();
  if (op == ReduceOp::average) sum = sum.div(group.size());
  tensor.copy_(sum);
}

}  // namespace lockstep::c10d
