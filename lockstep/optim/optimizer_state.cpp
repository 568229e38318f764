// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_state.h"

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerParamState;

template <class State>
OptimizerStateParts adam_parts(std::string_view optimizer, State& state) {
  return {.optimizer = optimizer,
          .tensors = {{"exp_avg", &state.exp_avg()},
                      {"exp_avg_sq", &state.exp_avg_sq()},
                      {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
          .integers = {{"step", &state.step()}}};
}

OptimizerStateParts parts(torch::optim::AdamParamState& state) { return adam_parts("Adam", state); }
OptimizerStateParts parts(torch::optim::AdamWParamState& state) {
  return adam_parts("AdamW", state);
}

OptimizerStateParts parts(torch::optim::SGDParamState& state) {
  return {.optimizer = "SGD",
          .tensors = {{"momentum_buffer", &state.momentum_buffer()}},
          .integers = {}};
}

OptimizerStateParts parts(torch::optim::AdagradParamState& state) {
  return {.optimizer = "Adagrad",
          .tensors = {{"sum", &state.sum()}},
          .integers = {{"step", &state.step()}}};
}

OptimizerStateParts parts(torch::optim::RMSpropParamState& state) {
  return {.optimizer = "RMSprop",
          .tensors = {{"square_avg", &state.square_avg()},
                      {"momentum_buffer", &state.momentum_buffer()},
                      {"grad_avg", &state.grad_avg()}},
          .integers = {{"step", &state.step()}}};
}

template <class State>
bool fill(OptimizerParamState& state, OptimizerStateParts& result) {
  auto* typed = dynamic_cast<State*>(&state);
  if (typed != nullptr) result = parts(*typed);
  return typed != nullptr;
}

template <class Optimizer, class State>
bool make(const torch::optim::Optimizer& optimizer, std::unique_ptr<OptimizerParamState>& result) {
  const bool is_one = dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
  if (is_one) result = std::make_unique<State>();
  return is_one;
}

[[noreturn]] void refuse(const std::type_info& type) {
  throw Error(Fault::unsupported,
              c10::demangle(type.name()) +
                  ": what it keeps of a parameter is known only of SGD, Adam, AdamW, Adagrad and "
                  "RMSprop, and of what derives from these");
}

}  // namespace

OptimizerStateParts parts_of(OptimizerParamState& state) {
  using namespace torch::optim;
  OptimizerStateParts result;
  if (!fill<AdamParamState>(state, result) && !fill<AdamWParamState>(state, result) &&
      !fill<SGDParamState>(state, result) && !fill<AdagradParamState>(state, result) &&
      !fill<RMSpropParamState>(state, result))
    refuse(typeid(state));
  return result;
}

std::unique_ptr<OptimizerParamState> make_param_state(const torch::optim::Optimizer& optimizer) {
  namespace plain = torch::optim;
  std::unique_ptr<OptimizerParamState> state;
  if (!make<plain::Adam, plain::AdamParamState>(optimizer, state) &&
      !make<plain::AdamW, plain::AdamWParamState>(optimizer, state) &&
      !make<plain::SGD, plain::SGDParamState>(optimizer, state) &&
      !make<plain::Adagrad, plain::AdagradParamState>(optimizer, state) &&
      !make<plain::RMSprop, plain::RMSpropParamState>(optimizer, state))
    refuse(typeid(optimizer));
  return state;
}

}  // namespace lockstep
