// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/fully_sharded_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/optim/optimizer_state.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

using Fragment = ShardedUnits::Fragment;

// Elements in memory order of a tensor that was read row by row.
at::Tensor cut(const at::Tensor& data, const Shard& shard, const at::Tensor& parameter) {
  const at::Tensor laid_out =
      at::empty_strided(parameter.sizes(), dense_strides(parameter), data.options());
  laid_out.copy_(data.reshape(parameter.sizes()));
  return fragment_of(laid_out, shard, laid_out);
}

class FullyShardedState final : public Stateful {
 public:
  FullyShardedState(torch::nn::Module& module, std::shared_ptr<ShardedUnits> units)
      : module_(module), units_(std::move(units)) {}

  StateDict state_dict() override {
    StateDict state = state_of(module_);
    for (const auto& [name, parameter] : named_parameters(module_)) {
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
    std::map<std::string, at::ScalarType> types;
    for (const auto& [name, parameter] : named_parameters(module_))
      types[name] = units_->type_of(parameter);
    require_fits(module_, saved, types);
    StateRequest request = wanted_apart(module_, saved);
    for (const auto& [name, parameter] : loaded_parameters()) {
      const Fragment* const own = own_of(parameter);
      if (own == nullptr)
        request.erase(name);
      else if (parameter.is_contiguous())
        request.at(name) = {.begin = own->shard.begin,
                            .end = own->shard.end,
                            .into = own->tensor.detach(),
                            .boxes = request.at(name).boxes};
    }
    return request;
  }

  void load_state_dict(StateDict state) override {
    const at::NoGradGuard no_grad;
    for (const auto& [name, buffer] : named_buffers(module_))
      at::Tensor(buffer).copy_(state.tensors.at(name).data);
    units_->write([&] {
      for (const auto& [name, parameter] : loaded_parameters()) {
        const Fragment* const own = own_of(parameter);
        if (own == nullptr) continue;
        if (!parameter.is_contiguous())
          own->tensor.copy_(cut(state.tensors.at(name).data, own->shard, parameter));
        own->publish();
      }
    });
  }

 private:
  // Null if this rank steps no element of it.
  const Fragment* own_of(const at::Tensor& parameter) const {
    const auto& all = units_->fragments_of(parameter);
    const auto own =
        std::ranges::find_if(all, [](const Fragment& one) { return one.tensor.defined(); });
    return own == all.end() ? nullptr : &*own;
  }

  // A tied weight has the value of its first name, as others were saved equal.
  NamedTensors loaded_parameters() const {
    const NamedTensors all = named_parameters(module_);
    const auto first = first_names(all);
    NamedTensors loaded;
    for (const auto& named : all)
      if (first.at(named.first) == named.first) loaded.push_back(named);
    return loaded;
  }

  torch::nn::Module& module_;
  const std::shared_ptr<ShardedUnits> units_;
};

}  // namespace

std::unique_ptr<Stateful> fully_sharded_state(torch::nn::Module& module,
                                              std::shared_ptr<ShardedUnits> units) {
  return std::make_unique<FullyShardedState>(module, std::move(units));
}

}  // namespace lockstep::parallel
