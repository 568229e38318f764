// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/held_tensors.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

class WholeTensors final : public HeldTensors {
 public:
  explicit WholeTensors(const torch::nn::Module& module) : module_(module) {}

  std::map<std::string, StateTensor> tensors() const override {
    std::map<std::string, StateTensor> held;
    const StateDict all = state_dict_of(module_);
    for (const auto& [name, parameter] : distinct(named_parameters(module_))) {
      // Itself: torch::load() may assign other memory to it.
      held.emplace(name, all.tensors.at(name)).first->second.data = parameter;
    }
    return held;
  }

  const ProcessGroup* sharing_ranks() const override { return nullptr; }
  void require_intact() const override {}
  void write(const std::function<void()>& change) override { change(); }
  void write_alone(const std::function<void()>& change) override { change(); }

 private:
  const torch::nn::Module& module_;
};

class HeldSlices final : public HeldTensors {
 public:
  HeldSlices(const torch::nn::Module& module, std::shared_ptr<parallel::ParameterStore> store,
             const ProcessGroup& group)
      : store_(std::move(store)), group_(group) {
    const std::map<std::string, StateTensor> all = whole_tensors_of(module)->tensors();
    for (const auto& [name, parameter] : distinct(named_parameters(module))) {
      parameters_.push_back(parameter);
      const std::int64_t begin = parameter.numel() * group.rank() / group.size();
      const std::int64_t end = parameter.numel() * (group.rank() + 1) / group.size();
      if (begin == end) continue;
      StateTensor& tensor = held_.emplace(name, all.at(name)).first->second;
      tensor.data = store_->fragment(parameter, begin, end);
      tensor.begin = begin;
      if (!parameter.is_contiguous()) tensor.strides = parameter.strides().vec();
    }
  }

  std::map<std::string, StateTensor> tensors() const override { return held_; }
  const ProcessGroup* sharing_ranks() const override { return &group_; }
  void require_intact() const override { store_->require_intact(); }

  void write(const std::function<void()>& change) override {
    store_->write(parameters_, group_, change);
  }

  void write_alone(const std::function<void()>& change) override {
    if (!store_->is_partially_updated()) store_->begin_step();
    change();
  }

 private:
  const std::shared_ptr<parallel::ParameterStore> store_;
  const ProcessGroup group_;
  std::vector<at::Tensor> parameters_;
  std::map<std::string, StateTensor> held_;
};

}  // namespace

std::unique_ptr<HeldTensors> held_tensors_of(DataParallelBase& ddp) { return ddp.held_tensors(); }

std::unique_ptr<HeldTensors> whole_tensors_of(const torch::nn::Module& module) {
  return std::make_unique<WholeTensors>(module);
}

std::unique_ptr<HeldTensors> slices_held(const torch::nn::Module& module,
                                         std::shared_ptr<parallel::ParameterStore> store,
                                         const ProcessGroup& group) {
  return std::make_unique<HeldSlices>(module, std::move(store), group);
}

}  // namespace lockstep
