// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/gradient_slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// In memory order.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

}  // namespace

GradientSlices::GradientSlices(std::vector<at::Tensor> parameters, const HostGroups& groups,
                               std::string label, GradientConversion conversion)
    : parameters_(std::move(parameters)),
      groups_(groups),
      label_(std::move(label)),
      conversion_(conversion),
      layout_(parameters_, groups.all.size()) {
  for (const SliceLayout::Region& slices : layout_.regions) regions_.push_back(region_of(slices));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (Shard shard : layout_.shards_of(i)) {
      shard.owner = groups_.owners[static_cast<std::size_t>(shard.owner)];
      shards_.push_back(shard);
    }
}

GradientSlices::Region GradientSlices::region_of(const SliceLayout::Region& slices) const {
  const at::ScalarType type = conversion_.of(slices.type);
  Region region{.label = label_};
  for (const std::size_t i : slices.parameters) region.label += ' ' + std::to_string(i);
  if (!is_large_gradient(parameters_[slices.parameters.front()].nbytes()))
    region.flat = registered_zeros({slices.elements()}, type, groups_.host);
  const std::int64_t reals = c10::isComplexType(type) ? 2 : 1;
  const auto elements = [&](int first, int last) {
    const auto& bounds = slices.bounds;
    return static_cast<std::size_t>(
        reals * (bounds[static_cast<std::size_t>(last)] - bounds[static_cast<std::size_t>(first)]));
  };
  const int hosts = groups_.hosts();
  for (int rail = 0; rail < groups_.host.size(); ++rail)
    region.rails.push_back(elements(rail * hosts, (rail + 1) * hosts));
  for (int slice = groups_.first_of_rail(); slice < groups_.first_of_rail() + hosts; ++slice)
    region.hosts.push_back(elements(slice, slice + 1));
  return region;
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
  std::vector<std::uint8_t> all(mine.size() * static_cast<std::size_t>(groups_.all.size()));
  groups_.all.all_gather({.data = mine.data(), .count = mine.size(), .dtype = DType::uint8},
                         {.data = all.data(), .count = all.size(), .dtype = DType::uint8}, {},
                         {.label = "gradients of a step"});
  std::vector<bool> used(mine.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != 0) used[i % mine.size()] = true;
  return used;
}

// In the parameter's layout. If `written`, no other tensor may use the memory, nor the program hold
// a handle: two are the list's and the parameter's.
at::Tensor GradientSlices::laid_out(std::size_t parameter, const at::Tensor& gradient,
                                    bool written) const {
  const at::Tensor& like = parameters_[parameter];
  const at::ScalarType type = conversion_.of(like.scalar_type());
  if (!gradient.defined()) return like_gradient(like, type).zero_();
  const bool usable =
      !written || (gradient.storage().use_count() == 1 && gradient.use_count() <= 2);
  return usable && holds_values(gradient) && has_strides(gradient, like.strides()) &&
                 gradient.scalar_type() == type
             ? gradient
             : like_gradient(like, type).copy_(gradient);
}

at::Tensor GradientSlices::collect(std::size_t region, const Gradients& gradients,
                                   const std::vector<bool>& used, bool written) const {
  const std::vector<std::size_t>& parameters = layout_.regions[region].parameters;
  const at::Tensor& whole = regions_[region].flat;
  if (!whole.defined()) {
    const std::size_t only = parameters.front();
    return used[only] ? flat(laid_out(only, gradients[only], written)) : at::Tensor();
  }
  if (std::none_of(parameters.begin(), parameters.end(), [&](std::size_t i) { return used[i]; }))
    return {};
  for (const std::size_t i : parameters) {
    const at::Tensor& parameter = parameters_[i];
    if (!used[i]) continue;
    const at::Tensor place = whole.as_strided(parameter.sizes(), parameter.strides(),
                                              whole.storage_offset() + layout_.homes[i].begin);
    gradients[i].defined() ? place.copy_(gradients[i]) : place.zero_();
  }
  return whole;
}

GradientSlices::Slice GradientSlices::average(std::size_t region, const at::Tensor& flat,
                                              Means means) const {
  const Region& how = regions_[region];
  const auto bound = [&](int slice) {
    return layout_.regions[region].bounds[static_cast<std::size_t>(slice)];
  };
  const int first = groups_.first_of_rail();
  const std::int64_t begin = bound(groups_.own_slice());
  at::Tensor of_rail = flat.slice(0, bound(first), bound(first + groups_.hosts()));
  const at::Tensor own = flat.slice(0, begin, bound(groups_.own_slice() + 1));
  const bool is_apart = means == Means::apart;
  const at::Tensor mean = is_apart ? at::empty_like(own) : own;
  const auto reduce = [&](const ProcessGroup& group, const at::Tensor& all, const at::Tensor& part,
                          const Counts& counts) {
    constexpr ReduceOp op = ReduceOp::average;
    group.reduce_scatter(reducible(all, op), reducible(part, op), op, counts, {.label = how.label});
  };
  if (groups_.host.size() > 1) {
    if (is_apart) of_rail = groups_.rail ? at::empty_like(of_rail) : mean;
    reduce(groups_.host, flat, of_rail, how.rails);
  }
  if (groups_.rail)
    reduce(*groups_.rail, of_rail, mean, how.hosts);
  else if (groups_.host.size() == 1 && is_apart)
    mean.copy_(own);
  return {is_apart ? mean : flat, is_apart ? begin : 0};
}

std::vector<at::Tensor> GradientSlices::average(Gradients gradients, const std::vector<bool>& used,
                                                Means means) const {
  const at::NoGradGuard no_grad;
  std::vector<Slice> slices;
  for (std::size_t region = 0; region < regions_.size(); ++region) {
    at::Tensor flat = collect(region, gradients, used, /*written=*/means == Means::in_place);
    for (const std::size_t i : layout_.regions[region].parameters) gradients[i].reset();
    slices.push_back(flat.defined() ? average(region, flat, means) : Slice());
  }
  return own_parts(slices, used);
}

std::vector<at::Tensor> GradientSlices::cut(const Gradients& gradients,
                                            const std::vector<bool>& used) const {
  const at::NoGradGuard no_grad;
  std::vector<Slice> slices;
  for (std::size_t region = 0; region < regions_.size(); ++region)
    slices.push_back({collect(region, gradients, used, /*written=*/false)});
  return own_parts(slices, used);
}

std::vector<at::Tensor> GradientSlices::own_parts(const std::vector<Slice>& slices,
                                                  const std::vector<bool>& used) const {
  std::vector<at::Tensor> parts;
  for (const auto& [parameter, begin, end, owner] : shards_) {
    if (owner != groups_.all.rank()) continue;
    const auto& [region, first] = layout_.homes[parameter];
    const Slice& slice = slices[region];
    parts.push_back(used[parameter] ? slice.flat.slice(0, first + begin - slice.begin,
                                                       first + end - slice.begin)
                                    : at::Tensor());
  }
  return parts;
}

}  // namespace lockstep::parallel
