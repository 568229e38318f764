// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/sparse_all_reduce.h"

#include <ATen/Functions.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep {
namespace {

struct Extent {
  std::int64_t elements;
  std::int64_t sparse_dim;
};

std::vector<Extent> extents_of_ranks(const at::Tensor& tensor, const ProcessGroup& group,
                                     const CallOptions& options) {
  Extent own{tensor._nnz(), tensor.sparse_dim()};
  std::vector<Extent> all(static_cast<std::size_t>(group.size()));
  group.all_gather({.data = &own, .count = 2, .dtype = DType::int64},
                   {.data = all.data(), .count = 2 * all.size(), .dtype = DType::int64}, {},
                   Labelled(options, shape_text(tensor) + " sparse"));
  return all;
}

// That of ranks with elements; otherwise `own`.
std::int64_t common_sparse_dim(const std::vector<Extent>& extents, std::int64_t own) {
  const Extent* first = nullptr;
  for (const Extent& extent : extents) {
    if (extent.elements == 0) continue;
    if (first == nullptr) first = &extent;
    if (extent.sparse_dim != first->sparse_dim)
      throw Error(Fault::mismatch,
                  "sparse all_reduce: rank " + std::to_string(first - extents.data()) + " has " +
                      std::to_string(first->sparse_dim) + " sparse dimensions, and rank " +
                      std::to_string(&extent - extents.data()) + " has " +
                      std::to_string(extent.sparse_dim));
  }
  return first != nullptr ? first->sparse_dim : own;
}

at::Tensor all_rows(const at::Tensor& rows, const std::vector<Extent>& extents,
                    const ProcessGroup& group, const CallOptions& options) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = 0;
  for (const Extent& extent : extents) sizes[0] += extent.elements;
  const at::Tensor all = at::empty(sizes, rows.options());
  const at::Tensor own = values_of(rows);
  const Buffer to = movable(all);
  Counts counts;
  for (const Extent& extent : extents)
    counts.push_back(static_cast<std::size_t>(extent.elements) * elements_of_row(rows, to.dtype));
  group.all_gather(movable(own), to, counts, options);
  return all;
}

// Integers are truncated towards zero, as in dense averages.
at::Tensor average_of(const at::Tensor& sum, int ranks) {
  if (!at::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) return sum.div(ranks);
  return sum.div(ranks, "trunc");
}

}  // namespace

at::Tensor empty_sparse(const at::Tensor& like, std::int64_t sparse_dim) {
  return at::_sparse_coo_tensor_with_dims(sparse_dim, like.dim() - sparse_dim, like.sizes(),
                                          like.options().layout(at::kSparse).requires_grad(false));
}

void sparse_all_reduce(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group,
                       const CallOptions& options) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    throw Error(Fault::unsupported,
                "sparse all_reduce: " + std::string(name(op)) + " is not supported");
  at::Tensor own = tensor.coalesce();
  const auto extents = extents_of_ranks(own, group, options);
  const std::int64_t sparse_dim = common_sparse_dim(extents, own.sparse_dim());
  if (own.sparse_dim() != sparse_dim) own = empty_sparse(own, sparse_dim).coalesce();
  const at::Tensor indices = all_rows(own._indices().t(), extents, group, options);
  const at::Tensor values = all_rows(own._values(), extents, group, options);
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(indices.t(), values, own.sizes(),
                                                 values.options().layout(at::kSparse))
                       .coalesce();
  if (op == ReduceOp::average) sum = average_of(sum, group.size());
  tensor.copy_(sum);
}

}  // namespace lockstep
