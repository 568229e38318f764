// Lockstep's side of grad_scaler_test.py: trains with a GradScaler on given gradients.
//   grad_scaler_trace INPUT RESULT [OPTION=NUMBER]...
// INPUT holds weight.N and gradients.N, its gradient in each step: of Adam for N = 0 and 1, of SGD
// for N = 2. RESULT holds the last weights and `trace`: scale, growth tracker and, for each
// optimizer, whether its step was omitted. Options are those of GradScaler; or, with `scale`, the
// members of Python's state_dict(), from which it goes on.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/optim/clip_grad_norm.h>
#include <lockstep/optim/mixed_precision.h>
#include <lockstep/optim/optimizers.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using Numbers = std::map<std::string, double>;

Numbers numbers(int count, char** arguments) {
  Numbers result;
  for (int i = 0; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto equals = argument.find('=');
    result[argument.substr(0, equals)] = std::stod(argument.substr(equals + 1));
  }
  return result;
}

double number_or(const Numbers& given, const std::string& name, double otherwise) {
  const auto found = given.find(name);
  return found == given.end() ? otherwise : found->second;
}

void load(lockstep::GradScaler& scaler, const Numbers& given) {
  lockstep::StateDict state;
  for (const char* const name : {"scale", "growth_factor", "backoff_factor"})
    state.values.emplace(name, given.at(name));
  for (const char* const name : {"growth_interval", "_growth_tracker"})
    state.values.emplace(name, static_cast<std::int64_t>(given.at(name)));
  scaler.wanted(state);
  scaler.load_state_dict(state);
}

class Training {
 public:
  Training(std::map<std::string, at::Tensor> input, const Numbers& given)
      : given_(given), input_(std::move(input)) {
    for (const char* const name : {"weight.0", "weight.1", "weight.2"})
      weights_.push_back(input_.at(name).requires_grad_());
    adam_.emplace(std::vector{weights_[0], weights_[1]}, torch::optim::AdamOptions(1e-2));
    sgd_.emplace(std::vector{weights_[2]}, torch::optim::SGDOptions(1e-2));
    if (given.count("scale") == 0)
      scaler_.emplace(lockstep::ProcessGroup::self(),
                      lockstep::GradScalerOptions{.init_scale = given.at("init_scale"),
                                                  .growth_factor = given.at("growth_factor"),
                                                  .backoff_factor = given.at("backoff_factor"),
                                                  .growth_interval = static_cast<std::int64_t>(
                                                      given.at("growth_interval"))});
    else
      load(scaler_.emplace(), given);
  }

  std::int64_t steps() const { return input_.at("gradients.0").size(0); }

  std::vector<double> step(std::int64_t step) {
    adam_->zero_grad();
    sgd_->zero_grad();
    for (int pass = 0; pass < number_or(given_, "passes", 1); ++pass)
      scaler_->scale(loss(step)).backward();
    const auto every = static_cast<std::int64_t>(number_or(given_, "unscale_every", 0));
    if (every > 0 && step % every == 0) {
      scaler_->unscale_(*adam_);
      if (given_.count("max_norm") != 0)
        lockstep::clip_grad_norm_({weights_[0], weights_[1]}, given_.at("max_norm"));
    }
    const bool adam_omitted = !scaler_->step(*adam_), sgd_omitted = !scaler_->step(*sgd_);
    scaler_->update();
    const auto tracker = lockstep::value_of<std::int64_t>(scaler_->state_dict(), "_growth_tracker");
    return {scaler_->get_scale(), static_cast<double>(tracker), adam_omitted ? 1.0 : 0.0,
            sgd_omitted ? 1.0 : 0.0};
  }

  lockstep::NamedTensors weights() const {
    lockstep::NamedTensors result;
    for (std::size_t n = 0; n < weights_.size(); ++n) {
      std::string name = "weight.";
      result.emplace_back(name += std::to_string(n), weights_[n].detach());
    }
    return result;
  }

 private:
  at::Tensor loss(std::int64_t step) const {
    at::Tensor sum;
    for (std::size_t n = 0; n < weights_.size(); ++n) {
      std::string name = "gradients.";
      const at::Tensor part = (weights_[n] * input_.at(name += std::to_string(n))[step]).sum();
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }

  const Numbers given_;
  const std::map<std::string, at::Tensor> input_;
  std::vector<at::Tensor> weights_;
  std::optional<lockstep::Adam> adam_;
  std::optional<lockstep::SGD> sgd_;
  std::optional<lockstep::GradScaler> scaler_;
};

lockstep::NamedTensors run(const char* input, const Numbers& given) {
  const auto read = lockstep::load_safetensors(input).tensors;
  Training training({read.begin(), read.end()}, given);
  std::vector<at::Tensor> trace;
  for (std::int64_t step = 0; step < training.steps(); ++step)
    trace.push_back(at::tensor(training.step(step), at::kDouble));
  lockstep::NamedTensors result = training.weights();
  result.emplace_back("trace", at::stack(trace));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  try {
    lockstep::save_safetensors(argv[2], run(argv[1], numbers(argc - 3, argv + 3)));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
