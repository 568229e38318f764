// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/mask_methods.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/kthvalue.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::prune {
namespace {

std::vector<std::int64_t> other_dims(const at::Tensor& tensor, std::int64_t dim) {
  std::vector<std::int64_t> dims;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (d != dim) dims.push_back(d);
  return dims;
}

// `choose` selects remaining elements to become zero.
template <class Choose>
at::Tensor among_elements(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount,
                          const Choose& choose) {
  const at::Tensor is_left = mask == 1;
  const at::Tensor left = values.masked_select(is_left);
  const std::int64_t count = amount.of(left.numel());
  if (count == 0) return mask;
  at::Tensor partial = mask.masked_select(is_left);
  partial.index_fill_(0, choose(left, count), 0);
  at::Tensor result = mask.clone();
  result.masked_scatter_(is_left, partial);
  return result;
}

// `slices_of(left, count)` selects slices to keep, as indices or booleans.
template <class Choose>
at::Tensor among_slices(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount,
                        std::int64_t dim, const Choose& slices_of) {
  require(values.dim() > 1, "PruningMasks: slices need a parameter of two dimensions or more");
  require(dim >= -values.dim() && dim < values.dim(),
          "PruningMasks: the parameter has no such dimension");
  if (dim < 0) dim += values.dim();
  const at::Tensor rows = mask.sum(other_dims(mask, dim)).ne(0).nonzero().flatten();
  const at::Tensor left = values.index_select(dim, rows);
  const std::int64_t count = amount.of(left.size(dim));
  if (count == 0) return mask;
  std::vector<at::indexing::TensorIndex> kept(static_cast<std::size_t>(values.dim()),
                                              at::indexing::Slice());
  kept[static_cast<std::size_t>(dim)] = slices_of(left, dim, count);
  at::Tensor partial = at::zeros_like(left);
  partial.index_put_(kept, 1);
  partial *= mask.index_select(dim, rows);
  return mask.clone().index_copy_(dim, rows, partial);
}

}  // namespace

at::Tensor l1_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount) {
  return among_elements(values, mask, amount, [](const at::Tensor& left, std::int64_t count) {
    return std::get<1>(left.abs().topk(count, 0, /*largest=*/false));
  });
}

at::Tensor random_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount) {
  return among_elements(values, mask, amount, [](const at::Tensor& left, std::int64_t count) {
    return std::get<1>(at::rand_like(left).topk(count));
  });
}

at::Tensor ln_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount,
                   double norm, std::int64_t dim) {
  return among_slices(
      values, mask, amount, dim,
      [norm](const at::Tensor& left, std::int64_t along, std::int64_t count) {
        return std::get<1>(at::linalg_vector_norm(left, norm, other_dims(left, along))
                               .topk(left.size(along) - count));
      });
}

at::Tensor random_slices_mask(const at::Tensor& values, const at::Tensor& mask,
                              PruningAmount amount, std::int64_t dim) {
  return among_slices(values, mask, amount, dim,
                      [](const at::Tensor& left, std::int64_t along, std::int64_t count) {
                        const at::Tensor drawn = at::rand({left.size(along)});
                        return drawn > std::get<0>(drawn.kthvalue(count));
                      });
}

}  // namespace lockstep::prune
