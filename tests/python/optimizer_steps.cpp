// Lockstep's side of optimizers_test.py: one step for each given gradient, clipped first if a
// max_norm is given.
//   optimizer_steps INPUT RESULT ALGORITHM [OPTION=NUMBER]...
//   optimizer_steps INPUT RESULT EMA|SWA [OPTION=NUMBER]...
// The gradients stand for the weights after each step, of which the averages are asked for.
// INPUT holds weight.N, a tensor, and gradients.N, its gradient in each step, for N from 0; RESULT
// weight.N and its state as STATE.N, and total_norms when clipping.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/stack.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/optim/clip_grad_norm.h>
#include <lockstep/optim/layerwise.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/toolkit/average/averaged_model.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

using Numbers = std::map<std::string, double>;
using Tensors = std::map<std::string, at::Tensor>;

std::string key(std::string name, std::size_t n) {
  return name.append(".").append(std::to_string(n));
}

Numbers numbers(int count, char** arguments) {
  Numbers result;
  for (int i = 0; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto equals = argument.find('=');
    result[argument.substr(0, equals)] = std::stod(argument.substr(equals + 1));
  }
  return result;
}

template <class Options>
Options adam_options(const Numbers& given) {
  return Options(given.at("lr"))
      .betas({given.at("beta1"), given.at("beta2")})
      .eps(given.at("eps"))
      .weight_decay(given.at("weight_decay"))
      .amsgrad(given.at("amsgrad") != 0);
}

torch::optim::SGDOptions sgd_options(const Numbers& given) {
  return torch::optim::SGDOptions(given.at("lr"))
      .momentum(given.at("momentum"))
      .dampening(given.at("dampening"))
      .weight_decay(given.at("weight_decay"))
      .nesterov(given.at("nesterov") != 0);
}

lockstep::LARSOptions lars_options(const Numbers& given) {
  return lockstep::LARSOptions(given.at("lr"))
      .momentum(given.at("momentum"))
      .weight_decay(given.at("weight_decay"))
      .nesterov(given.at("nesterov") != 0)
      .trust_coefficient(given.at("trust_coefficient"))
      .eps(given.at("eps"))
      .clip(given.at("clip") != 0)
      .adapt(given.at("adapt") != 0);
}

lockstep::LAMBOptions lamb_options(const Numbers& given) {
  return lockstep::LAMBOptions(given.at("lr"))
      .betas({given.at("beta1"), given.at("beta2")})
      .eps(given.at("eps"))
      .weight_decay(given.at("weight_decay"))
      .adapt(given.at("adapt") != 0);
}

template <class AdamState>
  requires requires(AdamState state) { state.max_exp_avg_sq(); }
Tensors named(const AdamState& state) {
  return {{"exp_avg", state.exp_avg()},
          {"exp_avg_sq", state.exp_avg_sq()},
          {"max_exp_avg_sq", state.max_exp_avg_sq()}};
}

template <class MomentumState>
  requires requires(MomentumState state) { state.momentum_buffer(); }
Tensors named(const MomentumState& state) {
  return {{"momentum_buffer", state.momentum_buffer()}};
}

Tensors named(const lockstep::LAMBParamState& state) {
  return {{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
}

template <class Optimizer, class State, class Options>
lockstep::NamedTensors steps(const Tensors& input, const Options& options, const Numbers& given) {
  std::vector<at::Tensor> weights;
  for (std::size_t n = 0; input.count(key("weight", n)) != 0; ++n)
    weights.push_back(input.at(key("weight", n)).requires_grad_());

  Optimizer optimizer(weights, options);
  std::vector<at::Tensor> total_norms;
  for (std::int64_t step = 0; step < input.at(key("gradients", 0)).size(0); ++step) {
    for (std::size_t n = 0; n < weights.size(); ++n)
      weights[n].mutable_grad() = input.at(key("gradients", n))[step];
    if (given.count("max_norm") != 0)
      total_norms.push_back(
          lockstep::clip_grad_norm_(weights, given.at("max_norm"), given.at("norm_type")));
    optimizer.step();
  }

  lockstep::NamedTensors result;
  for (std::size_t n = 0; n < weights.size(); ++n) {
    result.emplace_back(key("weight", n), weights[n].detach());
    const auto state = optimizer.state().find(weights[n].unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    for (const auto& [name, tensor] : named(static_cast<const State&>(*state->second)))
      if (tensor.defined()) result.emplace_back(key(name, n), tensor);
  }
  if (!total_norms.empty()) result.emplace_back("total_norms", at::stack(total_norms));
  return result;
}

// Averages of parameters, of a buffer of numbers and of one of an integer.
lockstep::NamedTensors averages(const lockstep::AveragingRule& rule, const Tensors& input,
                                const Numbers& given) {
  torch::nn::Module net;
  std::vector<at::Tensor> tensors;
  for (std::size_t n = 0; input.count(key("weight", n)) != 0; ++n) {
    const at::Tensor weight = input.at(key("weight", n)).clone();
    const std::string name = "weight" + std::to_string(n);
    tensors.push_back(n == 0 ? net.register_buffer(name, weight)
                             : net.register_parameter(name, weight));
  }
  const at::Tensor count = net.register_buffer("count", at::zeros({}, at::kLong));
  lockstep::AveragedModel averaged(net, rule, {.use_buffers = given.at("use_buffers") != 0});
  const at::NoGradGuard no_grad;
  for (std::int64_t step = 0; step < input.at(key("gradients", 0)).size(0); ++step) {
    for (std::size_t n = 0; n < tensors.size(); ++n)
      tensors[n].copy_(input.at(key("gradients", n))[step]);
    count.add_(3);
    averaged.update();
  }
  lockstep::NamedTensors result;
  averaged.with_averages([&] {
    for (std::size_t n = 0; n < tensors.size(); ++n)
      result.emplace_back(key("weight", n), tensors[n].detach().clone());
    result.emplace_back("count", count.clone());
  });
  return result;
}

lockstep::NamedTensors run(const std::string& algorithm, const Tensors& input,
                           const Numbers& given) {
  using namespace torch::optim;
  if (algorithm == "Adam")
    return steps<lockstep::Adam, AdamParamState>(input, adam_options<AdamOptions>(given), given);
  if (algorithm == "AdamW")
    return steps<lockstep::AdamW, AdamWParamState>(input, adam_options<AdamWOptions>(given), given);
  if (algorithm == "LARS")
    return steps<lockstep::LARS, lockstep::LARSParamState>(input, lars_options(given), given);
  if (algorithm == "LAMB")
    return steps<lockstep::LAMB, lockstep::LAMBParamState>(input, lamb_options(given), given);
  if (algorithm == "EMA") return averages(lockstep::ema(given.at("decay")), input, given);
  if (algorithm == "SWA") return averages(lockstep::swa(), input, given);
  lockstep::require(algorithm == "SGD", "no such algorithm: " + algorithm);
  return steps<lockstep::SGD, SGDParamState>(input, sgd_options(given), given);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 64;
  try {
    const auto read = lockstep::load_safetensors(argv[1]).tensors;
    const Tensors input(read.begin(), read.end());
    lockstep::save_safetensors(argv[2], run(argv[3], input, numbers(argc - 4, argv + 4)));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
