// Saves a checkpoint of a module, some values and a GPT that is cut over the ranks, and prints its
// contents: DIRECTORY.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <iostream>
#include <limits>
#include <memory>

#include "examples/models/gpt.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"

namespace {

class Fixed final : public lockstep::Stateful {
 public:
  Fixed(const lockstep::NamedTensors& tensors, lockstep::StateValues values) {
    for (const auto& [name, tensor] : tensors) state_.tensors[name] = lockstep::whole(tensor);
    state_.values = std::move(values);
  }

  lockstep::StateDict state_dict() override { return state_; }
  lockstep::StateRequest wanted(const lockstep::StateDict&) override { return {}; }
  void load_state_dict(lockstep::StateDict) override {}

 private:
  lockstep::StateDict state_;
};

lockstep::NamedTensors of_every_type() {
  lockstep::NamedTensors tensors;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kShort, at::kChar, at::kByte, at::kBool})
    tensors.emplace_back(c10::toString(type), at::arange(6).to(type).view({2, 3}));
  tensors.emplace_back("scalar", at::arange(3, 4)[0]);
  tensors.emplace_back("empty", at::ones({0, 5}));
  tensors.emplace_back("größe", at::arange(6).view({2, 3}).t());
  return tensors;
}

// Each rank will have a part of it. A vocabulary of 51 has 26 and 25 rows.
std::shared_ptr<Gpt> gpt() {
  torch::manual_seed(2);
  return std::make_shared<Gpt>(
      GptOptions{.vocabulary = 51, .block_size = 6, .layers = 2, .heads = 2, .width = 8});
}

void print(const char* part, const lockstep::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    std::cout << "tensor " << part << ' ' << name << ' ' << lockstep::sha256({tensor}) << std::endl;
}

void save(const char* directory, const lockstep::ProcessGroup& world) {
  namespace nn = torch::nn;
  torch::manual_seed(1);  // The same on all ranks.
  const nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 40, 3)), nn::BatchNorm2d(40),
                           nn::Linear(300, 7));
  const lockstep::NamedTensors weights = lockstep::named_tensors(*net);
  const lockstep::NamedTensors others = of_every_type();
  Fixed model(weights, {});
  Fixed rest(others, {{"epoch", std::int64_t{3}},
                      {"lr", 0.1},
                      {"best", std::numeric_limits<double>::infinity()},
                      {"amsgrad", false},
                      {"name", "größe"},
                      {"betas", std::vector<double>{0.9, 0.999}}});
  const auto whole = gpt(), cut = gpt();
  lockstep::parallelize_module(*cut, world, gpt_plan());
  const auto parts = lockstep::state_of(*cut);
  lockstep::Checkpointer(directory, world)
      .save(7, {{"model", &model}, {"rest", &rest}, {"gpt", parts.get()}});
  if (world.rank() != 0) return;
  print("model", weights);
  print("rest", others);
  print("gpt", lockstep::named_tensors(*whole));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  try {
    lockstep::ProcessGroup world = lockstep::init_process_group();
    save(argv[1], world);
    lockstep::destroy_process_group(world);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
