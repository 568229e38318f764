// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/training_state.h"

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/schedule_state.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/train/variable_state.h"

namespace lockstep {
namespace {

class TensorState : public Stateful {
 public:
  TensorState(std::string name, at::Tensor& tensor) : name_(std::move(name)), tensor_(tensor) {}

  StateDict state_dict() override {
    require_defined();
    return {.tensors = {{"value", whole(tensor_)}}, .values = {}};
  }

  StateRequest wanted(const StateDict& saved) override {
    require_defined();
    const auto found = saved.tensors.find("value");
    require(found != saved.tensors.end(),
            [&] { return "TrainingState: '" + name_ + "' was not saved as a tensor"; });
    const at::Tensor& theirs = found->second.data;
    require(theirs.scalar_type() == tensor_.scalar_type() && theirs.sizes() == tensor_.sizes(),
            [&] {
              return "TrainingState: '" + name_ + "' was saved as " + text_of(theirs) + " and is " +
                     text_of(tensor_);
            });
    return everything(saved);
  }

  void load_state_dict(StateDict state) override {
    const at::NoGradGuard no_grad;
    tensor_.copy_(state.tensors.at("value").data);
  }

 private:
  static std::string text_of(const at::Tensor& tensor) {
    std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
    for (const char* separator = ""; const std::int64_t size : tensor.sizes()) {
      text += separator + std::to_string(size);
      separator = ", ";
    }
    return text + "]";
  }

  void require_defined() const {
    require(tensor_.defined(),
            [&] { return "TrainingState: the tensor '" + name_ + "' is undefined"; });
  }

  const std::string name_;
  at::Tensor& tensor_;
};

}  // namespace

TrainingState::TrainingState() = default;
TrainingState::~TrainingState() = default;

void TrainingState::add(const std::string& name, torch::nn::Module& module) {
  keep(name, state_of(module));
}

void TrainingState::add(const std::string& name, const torch::jit::Module& script) {
  keep(name, state_of(script));
}

void TrainingState::add(const std::string& name, DataParallelBase& ddp) {
  if (shared_part_.empty() && ddp.shares_parameters()) shared_part_ = name;
  keep(name, state_of(ddp));
}

void TrainingState::add(const std::string& name, torch::optim::Optimizer& optimizer,
                        const torch::nn::Module& module) {
  keep(name, state_of(optimizer, named_parameters(module), layouts_of(module)));
}

void TrainingState::add(const std::string& name, torch::optim::Optimizer& optimizer,
                        const Pipeline& pipeline) {
  keep(name, state_of(optimizer, pipeline));
}

// A Stateful schedule may be passed as LibTorch's class.
void TrainingState::add(const std::string& name, torch::optim::LRScheduler& schedule) {
  if (auto* const stateful = dynamic_cast<Stateful*>(&schedule)) return add(name, *stateful);
  keep(name, state_of(schedule));
}

void TrainingState::add(const std::string& name,
                        torch::optim::ReduceLROnPlateauScheduler& schedule) {
  keep(name, state_of(schedule));
}

void TrainingState::add(const std::string& name, const DistributedSampler& sampler) {
  keep(name, state_of(sampler));
}

void TrainingState::add(const std::string& name, const RandomGenerators& generators) {
  keep(name, std::make_unique<RandomGenerators>(generators));
}

void TrainingState::add(const std::string& name, at::Tensor& tensor) {
  keep(name, std::make_unique<TensorState>(name, tensor));
}

void TrainingState::add(const std::string& name, Stateful& state) {
  require(is_part_name(name), [&] {
    return "TrainingState: '" + name +
           "' is not a valid name: use 1 to 64 letters, digits, '_' and '-', the first not '-'";
  });
  for (const auto& [other, unused] : parts_)
    require(other != name, [&] { return "TrainingState: part '" + name + "' exists already"; });
  parts_.emplace_back(name, &state);
}

template <class T>
void TrainingState::add_value(const std::string& name, T& value) {
  keep(name, std::make_unique<train::VariableState<T>>(name, value));
}

void TrainingState::keep(const std::string& name, std::unique_ptr<Stateful> state) {
  owned_.push_back(std::move(state));
  add(name, *owned_.back());
}

LoadedWeights load_weights(DataParallelBase& ddp, const std::filesystem::path& path,
                           const LoadWeightsOptions& options) {
  LoadWeightsOptions all = options;
  all.first_names.merge(first_names(named_tensors(ddp.replica())));
  return load_weights(*state_of(ddp), path, ddp.group(), all);
}

void save_weights(DataParallelBase& ddp, const std::filesystem::path& folder,
                  const SaveWeightsOptions& options) {
  save_weights(*state_of(ddp), folder, ddp.group(), options);
}

template LOCKSTEP_API void TrainingState::add_value(const std::string&, bool&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, char&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, signed char&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, unsigned char&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, short&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, unsigned short&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, int&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, unsigned&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, long&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, unsigned long&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, long long&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, unsigned long long&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, float&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, double&);
template LOCKSTEP_API void TrainingState::add_value(const std::string&, std::string&);

}  // namespace lockstep
