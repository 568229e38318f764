// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/one_copy/gradient_slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/memory.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// Number of elements after which a new cache line begins.
std::int64_t elements_of_line(at::ScalarType dtype) {
  return static_cast<std::int64_t>(padded(1) / c10::elementSize(dtype));
}

std::int64_t padded_elements(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(padded(tensor.nbytes()) / tensor.element_size());
}

// The bounds of `ranks` slices of `elements` elements. No two slices share a cache line.
std::vector<std::int64_t> bounds_of(std::int64_t elements, std::int64_t line, int ranks) {
  std::vector<std::int64_t> bounds;
  for (int rank = 0; rank < ranks; ++rank) bounds.push_back(elements / line * rank / ranks * line);
  bounds.push_back(elements);
  return bounds;
}

// All elements of a dense tensor in memory order.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

// The gradient in the layout of its parameter. If it is to be `written`, no other tensor uses its
// memory.
at::Tensor laid_out(const at::Tensor& parameter, const at::Tensor& gradient, bool written) {
  if (!gradient.defined()) return like_gradient(parameter).zero_();
  const bool usable = !written || gradient.storage().use_count() == 1;
  return usable && holds_values(gradient) && has_strides(gradient, parameter.strides())
             ? gradient
             : like_gradient(parameter).copy_(gradient);
}

}  // namespace

GradientSlices::GradientSlices(std::vector<at::Tensor> parameters, const ProcessGroup& group,
                               std::string label)
    : parameters_(std::move(parameters)),
      group_(group),
      label_(std::move(label)),
      homes_(parameters_.size()) {
  std::map<at::ScalarType, std::vector<std::size_t>> small;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_large_gradient(parameters_[i].nbytes()))
      add_region({i});
    else
      small[parameters_[i].scalar_type()].push_back(i);
  }
  for (auto& [dtype, members] : small) add_region(std::move(members));
  for (std::size_t i = 0; i < parameters_.size(); ++i) add_shards(i);
}

void GradientSlices::add_region(std::vector<std::size_t> parameters) {
  const at::Tensor& first = parameters_[parameters.front()];
  Region region;
  region.label = label_;
  std::int64_t elements = 0;
  for (const std::size_t i : parameters) {
    homes_[i] = {regions_.size(), elements};
    region.label += ' ' + std::to_string(i);
    elements += padded_elements(parameters_[i]);
  }
  if (is_large_gradient(first.nbytes())) {
    elements = first.numel();
  } else {
    region.flat = registered_zeros({elements}, first.scalar_type(), group_);
  }
  region.bounds = bounds_of(elements, elements_of_line(first.scalar_type()), group_.size());
  const std::size_t reals = first.is_complex() ? 2 : 1;
  for (std::size_t r = 0; r + 1 < region.bounds.size(); ++r)
    region.counts.push_back(reals *
                            static_cast<std::size_t>(region.bounds[r + 1] - region.bounds[r]));
  region.parameters = std::move(parameters);
  regions_.push_back(std::move(region));
}

void GradientSlices::add_shards(std::size_t parameter) {
  const auto& [number, first] = homes_[parameter];
  const auto& bounds = regions_[number].bounds;
  const std::int64_t last = first + parameters_[parameter].numel();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::int64_t begin = std::max(first, bounds[static_cast<std::size_t>(rank)]);
    const std::int64_t end = std::min(last, bounds[static_cast<std::size_t>(rank) + 1]);
    if (begin < end) shards_.push_back({parameter, begin - first, end - first, rank});
  }
}

std::vector<at::Tensor> GradientSlices::flats() const {
  std::vector<at::Tensor> flats;
  for (const Region& region : regions_)
    if (region.flat.defined()) flats.push_back(region.flat);
  return flats;
}

std::vector<bool> GradientSlices::used(const Gradients& gradients) const {
  std::vector<std::uint8_t> mine;
  for (const at::Tensor& gradient : gradients) mine.push_back(gradient.defined() ? 1 : 0);
  std::vector<std::uint8_t> all(mine.size() * static_cast<std::size_t>(group_.size()));
  group_.all_gather({.data = mine.data(), .count = mine.size(), .dtype = DType::uint8},
                    {.data = all.data(), .count = all.size(), .dtype = DType::uint8}, {},
                    {.label = "gradients of a step"});
  std::vector<bool> used(mine.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != 0) used[i % mine.size()] = true;
  return used;
}

// This rank's gradients of a region's used parameters.
at::Tensor GradientSlices::collect(const Region& region, const Gradients& gradients,
                                   const std::vector<bool>& used, bool written) const {
  if (!region.flat.defined()) {
    const std::size_t only = region.parameters.front();
    return used[only] ? flat(laid_out(parameters_[only], gradients[only], written)) : at::Tensor();
  }
  if (std::none_of(region.parameters.begin(), region.parameters.end(),
                   [&](std::size_t i) { return used[i]; }))
    return {};
  for (const std::size_t i : region.parameters) {
    const at::Tensor& parameter = parameters_[i];
    if (!used[i]) continue;
    const at::Tensor place = region.flat.as_strided(parameter.sizes(), parameter.strides(),
                                                    region.flat.storage_offset() + homes_[i].begin);
    gradients[i].defined() ? place.copy_(gradients[i]) : place.zero_();
  }
  return region.flat;
}

GradientSlices::Slice GradientSlices::average(const Region& region, const at::Tensor& flat,
                                              Means means) const {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const std::int64_t begin = region.bounds[rank];
  const at::Tensor own = flat.slice(0, begin, region.bounds[rank + 1]);
  const bool is_apart = means == Means::apart;
  const at::Tensor mean = is_apart ? at::empty_like(own) : own;
  constexpr ReduceOp op = ReduceOp::average;
  if (group_.size() > 1)
    group_.reduce_scatter(reducible(flat, op), reducible(mean, op), op, region.counts,
                          {.label = region.label});
  else if (is_apart)
    mean.copy_(own);
  return {is_apart ? mean : flat, is_apart ? begin : 0};
}

std::vector<at::Tensor> GradientSlices::average(Gradients gradients, const std::vector<bool>& used,
                                                Means means) const {
  const at::NoGradGuard no_grad;
  std::vector<Slice> slices;
  for (const Region& region : regions_) {
    at::Tensor flat = collect(region, gradients, used, /*written=*/means == Means::in_place);
    for (const std::size_t i : region.parameters) gradients[i].reset();
    slices.push_back(flat.defined() ? average(region, flat, means) : Slice());
  }
  return own_parts(slices, used);
}

std::vector<at::Tensor> GradientSlices::cut(const Gradients& gradients,
                                            const std::vector<bool>& used) const {
  const at::NoGradGuard no_grad;
  std::vector<Slice> slices;
  for (const Region& region : regions_)
    slices.push_back({collect(region, gradients, used, /*written=*/false)});
  return own_parts(slices, used);
}

std::vector<at::Tensor> GradientSlices::own_parts(const std::vector<Slice>& slices,
                                                  const std::vector<bool>& used) const {
  std::vector<at::Tensor> parts;
  for (const auto& [parameter, begin, end, owner] : shards_) {
    if (owner != group_.rank()) continue;
    const auto& [region, first] = homes_[parameter];
    const Slice& slice = slices[region];
    parts.push_back(used[parameter] ? slice.flat.slice(0, first + begin - slice.begin,
                                                       first + end - slice.begin)
                                    : at::Tensor());
  }
  return parts;
}

}  // namespace lockstep::parallel
