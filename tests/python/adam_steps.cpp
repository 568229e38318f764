// Our side of adam_test.py: one step for each of the given gradients.
//   adam_steps INPUT WEIGHT_DECAY AMSGRAD RESULT
// INPUT holds weight, a tensor, and gradients, its gradient in each step.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/unbind.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/optim/adam.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace {

const at::Tensor& named(const lockstep::NamedTensors& tensors, const char* name) {
  return std::find_if(tensors.begin(), tensors.end(),
                      [&](const auto& entry) { return entry.first == name; })
      ->second;
}

void run(char** arguments) {
  const auto input = lockstep::load_safetensors(arguments[1]).tensors;
  const at::Tensor weight = named(input, "weight").requires_grad_();
  const auto options = torch::optim::AdamOptions(1e-2)
                           .weight_decay(std::atof(arguments[2]))
                           .amsgrad(std::atoi(arguments[3]) == 1);
  lockstep::Adam adam({weight}, options);
  for (const at::Tensor& gradient : at::unbind(named(input, "gradients"))) {
    weight.mutable_grad() = gradient;
    adam.step();
  }
  const auto& state =
      static_cast<torch::optim::AdamParamState&>(*adam.state().at(weight.unsafeGetTensorImpl()));
  lockstep::NamedTensors result{{"weight", weight.detach()},
                                {"exp_avg", state.exp_avg()},
                                {"exp_avg_sq", state.exp_avg_sq()}};
  if (options.amsgrad()) result.emplace_back("max_exp_avg_sq", state.max_exp_avg_sq());
  lockstep::save_safetensors(arguments[4], result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 64;
  try {
    run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
