// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/fully_sharded_state.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep::parallel {
namespace {

using Fragment = ShardedUnits::Fragment;

class FullyShardedState final : public WeightState {
 public:
  explicit FullyShardedState(FullyShardedModule sharded) : sharded_(std::move(sharded)) {}

  StateDict state_dict() override {
    require(sharded_.has_values(),
            "the parameters have no values yet: call initialize() or load_weights() before a state "
            "is saved");
    StateDict state = state_dict_of(sharded_.module);
    for (const auto& [name, parameter] : named_parameters(sharded_.module)) {
      const Fragment* const own = own_of(parameter);
      if (own == nullptr) {
        state.tensors.erase(name);
        continue;
      }
      StateTensor& tensor = state.tensors.at(name);
      tensor.data = own->tensor.detach();
      tensor.begin = own->shard.begin;
      if (!parameter.is_contiguous()) tensor.strides = parameter.strides().vec();
    }
    return state;
  }

  StateRequest wanted(const StateDict& saved) override {
    require_fits(sharded_.module, saved, types());
    return request_for(saved);
  }

  StateRequest wanted_of_part(const StateDict& saved) override {
    require_part_fits(sharded_.module, saved, types());
    return request_for(saved);
  }

  StateTargets targets() override {
    return targets_of(sharded_.module, sharded_.has_values(), types());
  }

  void load_state_dict(StateDict state) override {
    const at::NoGradGuard no_grad;
    for (const auto& [name, buffer] : named_buffers(sharded_.module))
      if (const auto found = state.tensors.find(name); found != state.tensors.end())
        at::Tensor(buffer).copy_(found->second.data);
    sharded_.units->write([&] {
      for (const auto& [name, parameter] : loaded_of(state)) {
        const Fragment* const own = own_of(parameter);
        if (own == nullptr) continue;
        if (!parameter.is_contiguous())
          own->tensor.copy_(fragment_of_values(state.tensors.at(name).data, own->shard, parameter));
        own->publish();
      }
    });
    sharded_.loaded();
  }

 private:
  StateRequest request_for(const StateDict& saved) const {
    const NamedTensors all = named_parameters(sharded_.module);
    const StateRequest whole = wanted_apart(sharded_.module, saved);
    StateRequest request = whole;
    for (const auto& [name, parameter] : all) request.erase(name);
    for (const auto& [name, parameter] : loaded_of(saved)) {
      const Fragment* const own = own_of(parameter);
      if (own == nullptr) continue;
      request[name] = parameter.is_contiguous() ? ElementRange{.begin = own->shard.begin,
                                                               .end = own->shard.end,
                                                               .into = own->tensor.detach(),
                                                               .boxes = whole.at(name).boxes}
                                                : whole.at(name);
    }
    return request;
  }

  // The masters', which are saved.
  std::map<std::string, at::ScalarType> types() const {
    std::map<std::string, at::ScalarType> types;
    for (const auto& [name, parameter] : named_parameters(sharded_.module))
      types[name] = sharded_.units->type_of(parameter);
    return types;
  }

  // Null if this rank steps no element of `parameter`.
  const Fragment* own_of(const at::Tensor& parameter) const {
    const auto& all = sharded_.units->fragments_of(parameter);
    const auto own =
        std::ranges::find_if(all, [](const Fragment& one) { return one.tensor.defined(); });
    return own == all.end() ? nullptr : &*own;
  }

  // Each parameter once: values saved under several names were equal.
  NamedTensors loaded_of(const StateDict& state) const {
    NamedTensors loaded = named_parameters(sharded_.module);
    std::erase_if(loaded, [&](const auto& named) { return !state.tensors.contains(named.first); });
    return distinct(std::move(loaded));
  }

  const FullyShardedModule sharded_;
};

class HeldFragments final : public HeldTensors {
 public:
  explicit HeldFragments(FullyShardedModule sharded)
      : units_(sharded.units),
        parameters_(distinct(named_parameters(sharded.module))),
        state_(std::move(sharded)) {}

  std::map<std::string, StateTensor> tensors() const override {
    std::map<std::string, StateTensor> held;
    const StateDict all = state_.state_dict();
    for (const auto& [name, parameter] : parameters_)
      if (const auto found = all.tensors.find(name); found != all.tensors.end())
        held.insert(*found);
    return held;
  }

  const ProcessGroup* sharing_ranks() const override { return &units_->ranks().copy.all; }
  void require_intact() const override { units_->store().require_intact(); }

  void write(const std::function<void()>& change) override {
    units_->write([&] { write_and_publish(change); });
  }

  void write_alone(const std::function<void()>& change) override {
    const at::NoGradGuard no_grad;
    if (!units_->store().is_partially_updated()) units_->store().begin_step();
    write_and_publish(change);
  }

 private:
  void write_and_publish(const std::function<void()>& change) const {
    change();
    for (const auto& [name, parameter] : parameters_)
      for (const Fragment& fragment : units_->fragments_of(parameter)) fragment.publish();
  }

  const std::shared_ptr<ShardedUnits> units_;
  const NamedTensors parameters_;
  mutable FullyShardedState state_;
};

}  // namespace

std::unique_ptr<HeldTensors> held_fragments(FullyShardedModule sharded) {
  return std::make_unique<HeldFragments>(std::move(sharded));
}

std::unique_ptr<Stateful> fully_sharded_state(FullyShardedModule sharded) {
  return std::make_unique<FullyShardedState>(std::move(sharded));
}

}  // namespace lockstep::parallel
