// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/sharded_units.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/replicate/shared_parameters.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/name_pattern.h"

namespace lockstep::parallel {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return '0' <= c && c <= '9'; });
}

// The name's beginning up to its first number, if more follows.
std::optional<std::string> numbered_parent(const std::string& name) {
  std::string parent;
  const auto levels = levels_of(name);
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    parent += (i == 0 ? "" : ".") + levels[i];
    if (is_number(levels[i])) return parent;
  }
  return {};
}

}  // namespace

std::vector<Unit> units_of(const NamedTensors& parameters,
                           const std::vector<std::string>& patterns) {
  std::vector<bool> has_matched(patterns.size(), false);
  const auto unit_of = [&](const std::string& name) -> std::optional<std::string> {
    if (patterns.empty()) return numbered_parent(name);
    std::optional<std::string> unit;
    for (std::size_t i = 0; i < patterns.size(); ++i)
      if (auto parent = matching_parent(patterns[i], name)) {
        has_matched[i] = true;
        if (!unit) unit = std::move(parent);
      }
    return unit;
  };
  std::map<std::string, std::vector<std::size_t>> units;
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto unit = unit_of(parameters[i].first);
    (unit ? units[*unit] : rest).push_back(i);
  }
  for (std::size_t i = 0; i < patterns.size(); ++i)
    require(has_matched[i], [&] {
      return "FullyShardedDataParallel: no module with parameters that require gradients has a "
             "name like '" +
             patterns[i] + "'";
    });
  std::vector<Unit> all;
  for (auto& [name, indices] : units) all.push_back({name, std::move(indices)});
  if (!rest.empty()) all.push_back({"the rest", std::move(rest)});
  // The gradient of a unit's first parameter tends to come last.
  std::sort(all.begin(), all.end(), [](const Unit& a, const Unit& b) {
    return a.parameters.front() > b.parameters.front();
  });
  return all;
}

ShardedUnits::ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
                           std::shared_ptr<const SharedParameters> shared,
                           const ProcessGroup& group)
    : shared_(std::move(shared)),
      rank_(group.rank()),
      fragments_(parameters.size()),
      used_(parameters.size(), false) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    indices_.emplace(parameters[i].second.unsafeGetTensorImpl(), i);
  for (const auto& [name, indices] : units) {
    std::vector<at::Tensor> tensors;
    auto& parameter_names = parameter_names_.emplace_back();
    for (const std::size_t i : indices) {
      parameter_names.push_back(parameters[i].first);
      tensors.push_back(parameters[i].second);
    }
    units_.push_back(indices);
    names_.push_back(name);
    slices_.emplace_back(tensors, group, "gradients of unit " + name + ',');
    for (const Shard& shard : slices_.back().shards())
      fragments_[indices[shard.parameter]].push_back(
          {shard, shard.owner == rank_
                      ? shared_->fragment(tensors[shard.parameter], shard.begin, shard.end)
                      : at::Tensor()});
  }
}

std::vector<at::Tensor> ShardedUnits::average(std::size_t unit,
                                              GradientSlices::Gradients gradients) const {
  const std::vector<bool> all(gradients.size(), true);
  return naming_errors("gradients of unit " + names_[unit], [&] {
    return slices_[unit].average(std::move(gradients), all, GradientSlices::Means::apart);
  });
}

void ShardedUnits::add(std::size_t unit, const std::vector<at::Tensor>& means,
                       const std::vector<bool>& used) {
  auto mean = means.begin();  // In the order of the parameters, and of the fragments of each.
  for (const std::size_t parameter : units_[unit]) {
    if (used[parameter]) used_[parameter] = true;
    for (const Fragment& fragment : fragments_[parameter]) {
      if (!fragment.tensor.defined()) continue;
      const at::Tensor& added = *mean++;
      if (!used[parameter]) continue;
      at::Tensor& gradient = fragment.tensor.mutable_grad();
      if (gradient.defined())
        gradient.add_(added);
      else
        gradient = added;
    }
  }
}

void ShardedUnits::forget() noexcept {
  for (const auto& of_parameter : fragments_)
    for (const Fragment& fragment : of_parameter)
      if (fragment.tensor.defined()) fragment.tensor.mutable_grad().reset();
  used_.assign(used_.size(), false);
}

std::optional<std::size_t> ShardedUnits::index_of(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  if (found == indices_.end()) return {};
  return found->second;
}

std::vector<ShardedUnits::Fragment> ShardedUnits::fragments_of(const at::Tensor& parameter) const {
  if (const auto index = index_of(parameter)) return fragments_[*index];
  shared_->require_shared({parameter});
  const std::int64_t end = parameter.numel();
  if (end == 0) return {};
  return {{{.begin = 0, .end = end, .owner = 0},
           rank_ == 0 ? shared_->fragment(parameter, 0, end) : at::Tensor()}};
}

std::vector<at::Tensor> ShardedUnits::memory() const {
  std::vector<at::Tensor> all;
  for (const GradientSlices& slices : slices_)
    for (const at::Tensor& flat : slices.flats()) all.push_back(flat);
  return all;
}

}  // namespace lockstep::parallel
