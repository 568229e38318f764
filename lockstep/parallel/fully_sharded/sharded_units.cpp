// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/sharded_units.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return '0' <= c && c <= '9'; });
}

// The name up to its first number, if more follows.
std::optional<std::string> numbered_parent(const std::string& name) {
  std::string parent;
  const auto levels = levels_of(name);
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    parent += (i == 0 ? "" : ".") + levels[i];
    if (is_number(levels[i])) return parent;
  }
  return {};
}

// One collective per type.
void average_over(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors) by_type[tensor.scalar_type()].push_back(tensor);
  for (const auto& [type, some] : by_type) {
    const at::Tensor flat = at::cat(some);
    all_reduce(flat, group, ReduceOp::average);
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : some) {
      tensor.copy_(flat.narrow(0, begin, tensor.numel()));
      begin += tensor.numel();
    }
  }
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
  // The gradient of a unit's first parameter usually arrives last.
  std::sort(all.begin(), all.end(), [](const Unit& a, const Unit& b) {
    return a.parameters.front() > b.parameters.front();
  });
  return all;
}

at::Tensor fragment_of_values(const at::Tensor& values, const Shard& shard,
                              const at::Tensor& parameter) {
  const at::Tensor laid_out =
      at::empty_strided(parameter.sizes(), dense_strides(parameter), values.options());
  laid_out.copy_(values.reshape(parameter.sizes()));
  return fragment_of(laid_out, shard, laid_out);
}

void ShardedUnits::Fragment::publish() const {
  if (stored.defined() && !stored.is_same(tensor)) stored.copy_(tensor);
}

ShardedUnits::ShardedUnits(const NamedTensors& parameters, const std::vector<Unit>& units,
                           std::shared_ptr<ParameterStore> store, Ranks ranks,
                           const Masters& masters, GradientConversion conversion)
    : store_(std::move(store)), ranks_(std::move(ranks)) {
  for (const auto& [impl, master] : masters) types_.emplace(impl, master.scalar_type());
  const NamedTensors averaged = trained_parameters(parameters);
  for (const auto& [name, parameter] : averaged) {
    indices_.emplace(parameter.unsafeGetTensorImpl(), averaged_.size());
    averaged_.push_back(parameter.unsafeGetTensorImpl());
  }
  used_.assign(averaged.size(), false);
  steppers_.assign(averaged.size(), 0);
  for (const auto& [name, indices] : units) {
    std::vector<at::Tensor> tensors;
    auto& parameter_names = parameter_names_.emplace_back();
    for (const std::size_t i : indices) {
      parameter_names.push_back(averaged[i].first);
      tensors.push_back(store_->on_host(averaged[i].second));
    }
    units_.push_back(indices);
    names_.push_back(name);
    slices_.emplace_back(tensors, ranks_.copy, "gradients of unit " + name + ',', conversion);
    std::vector<std::vector<Shard>> shards(tensors.size());
    for (const Shard& shard : slices_.back().shards()) shards[shard.parameter].push_back(shard);
    for (std::size_t i = 0; i < indices.size(); ++i)
      add_fragments(averaged[indices[i]].second, shards[i], masters);
  }
  for (const auto& [name, parameter] : parameters) {
    const void* const impl = parameter.unsafeGetTensorImpl();
    if (!indices_.contains(impl) && !fragments_.contains(impl))
      add_fragments(parameter, store_->frozen_shards(parameter), masters);
  }
}

void ShardedUnits::add_fragments(const at::Tensor& parameter, const std::vector<Shard>& shards,
                                 const Masters& masters) {
  parameters_.push_back(parameter);
  std::vector<Fragment>& fragments = fragments_[parameter.unsafeGetTensorImpl()];
  const auto master = masters.find(parameter.unsafeGetTensorImpl());
  const at::NoGradGuard no_grad;
  for (const Shard& shard : shards) {
    Fragment& fragment = fragments.emplace_back(Fragment{.shard = shard});
    if (shard.owner != ranks_.copy.all.rank()) continue;
    fragment.stored = store_->fragment(parameter, shard.begin, shard.end);
    fragment.tensor = fragment.stored;
    if (master == masters.end()) continue;
    const at::Tensor& values = master->second;
    fragment.tensor = values.is_meta() ? at::zeros_like(fragment.stored, values.scalar_type())
                                       : fragment_of_values(values, shard, parameter).clone();
  }
}

std::vector<at::Tensor> ShardedUnits::average(std::size_t unit,
                                              GradientSlices::Gradients gradients) const {
  const std::vector<bool> all(gradients.size(), true);
  return naming_errors("gradients of unit " + names_[unit], [&] {
    auto means = slices_[unit].average(std::move(gradients), all, GradientSlices::Means::apart);
    if (ranks_.replicas) average_over(*ranks_.replicas, means);
    return means;
  });
}

void ShardedUnits::add(std::size_t unit, const std::vector<at::Tensor>& means,
                       const std::vector<bool>& used) {
  auto mean = means.begin();  // In the order of the parameters, and of their fragments.
  for (const std::size_t parameter : units_[unit]) {
    if (used[parameter]) used_[parameter] = true;
    for (const Fragment& fragment : fragments_.at(averaged_[parameter])) {
      if (!fragment.tensor.defined()) continue;
      const at::Tensor& added = *mean++;
      if (!used[parameter]) continue;
      at::Tensor& gradient = fragment.tensor.mutable_grad();
      if (gradient.defined())
        gradient.add_(added);
      else
        gradient = added.to(fragment.tensor.scalar_type());
    }
  }
}

void ShardedUnits::forget() noexcept {
  for (const auto& [parameter, fragments] : fragments_)
    for (const Fragment& fragment : fragments)
      if (fragment.tensor.defined()) fragment.tensor.mutable_grad().reset();
  used_.assign(used_.size(), false);
}

std::optional<std::size_t> ShardedUnits::used_without_stepper() const {
  for (std::size_t i = 0; i < used_.size(); ++i)
    if (used_[i] && steppers_[i] == 0) return i;
  return {};
}

std::optional<std::size_t> ShardedUnits::index_of(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  if (found == indices_.end()) return {};
  return found->second;
}

const std::vector<ShardedUnits::Fragment>& ShardedUnits::fragments_of(
    const at::Tensor& parameter) const {
  store_->require_shared(parameter);
  return fragments_.at(parameter.unsafeGetTensorImpl());
}

at::ScalarType ShardedUnits::type_of(const at::Tensor& parameter) const {
  const auto type = types_.find(parameter.unsafeGetTensorImpl());
  return type == types_.end() ? parameter.scalar_type() : type->second;
}

void ShardedUnits::follow_writes() {
  write([&] {
    for (const at::Tensor& parameter : parameters_)
      for (const Fragment& fragment : fragments_of(parameter)) {
        const auto& [shard, master, stored] = fragment;
        if (!stored.defined()) continue;
        if (ranks_.replicas) broadcast(stored, *ranks_.replicas);
        if (master.is_same(stored)) continue;
        const at::Tensor is_unchanged = master.to(stored.scalar_type()).eq(stored);
        master.copy_(at::where(is_unchanged, master, stored.to(master.scalar_type())));
        if (ranks_.replicas) broadcast(master, *ranks_.replicas);
      }
  });
}

void ShardedUnits::write(const std::function<void()>& write) {
  const at::NoGradGuard no_grad;
  store_->write(parameters_, ranks_.copy.all, write);
}

std::vector<at::Tensor> ShardedUnits::memory() const {
  std::vector<at::Tensor> all;
  for (const GradientSlices& slices : slices_)
    for (const at::Tensor& flat : slices.flats()) all.push_back(flat);
  return all;
}

}  // namespace lockstep::parallel
