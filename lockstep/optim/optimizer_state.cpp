// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <string>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/layerwise.h"

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

OptimizerStateParts parts(LARSParamState& state) {
  return {.optimizer = "LARS",
          .tensors = {{"momentum_buffer", &state.momentum_buffer()}},
          .integers = {}};
}

OptimizerStateParts parts(LAMBParamState& state) {
  return {.optimizer = "LAMB",
          .tensors = {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}},
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
                  ": its state cannot be read: only SGD, Adam, AdamW, Adagrad, RMSprop, "
                  "LARS, LAMB and classes derived from these are supported");
}

using torch::optim::OptimizerParamState;

bool is_whole(const Shard& shard, const at::Tensor& parameter) {
  return shard.begin == 0 && shard.end == parameter.numel();
}

void assemble(const at::Tensor& fragment, const Shard& shard, const at::Tensor& parameter,
              at::Tensor& whole) {
  if (!fragment.defined()) return;
  if (!whole.defined())
    whole = at::zeros_like(parameter, fragment.options().device(parameter.device()),
                           at::MemoryFormat::Preserve);
  if (is_whole(shard, parameter) && fragment.sizes() == parameter.sizes())
    whole.copy_(fragment);
  else
    fragment_of(whole, shard, parameter).copy_(fragment);
}

}  // namespace

OptimizerStateParts parts_of(OptimizerParamState& state) {
  using namespace torch::optim;
  OptimizerStateParts result;
  if (!fill<AdamParamState>(state, result) && !fill<AdamWParamState>(state, result) &&
      !fill<SGDParamState>(state, result) && !fill<AdagradParamState>(state, result) &&
      !fill<RMSpropParamState>(state, result) && !fill<LARSParamState>(state, result) &&
      !fill<LAMBParamState>(state, result))
    refuse(typeid(state));
  for (const auto& [name, tensor] : result.tensors)
    if (tensor->defined() && tensor->is_sparse()) *tensor = tensor->to_dense();
  return result;
}

std::unique_ptr<OptimizerParamState> make_param_state(const torch::optim::Optimizer& optimizer) {
  namespace plain = torch::optim;
  std::unique_ptr<OptimizerParamState> state;
  if (!make<plain::Adam, plain::AdamParamState>(optimizer, state) &&
      !make<plain::AdamW, plain::AdamWParamState>(optimizer, state) &&
      !make<plain::SGD, plain::SGDParamState>(optimizer, state) &&
      !make<plain::Adagrad, plain::AdagradParamState>(optimizer, state) &&
      !make<plain::RMSprop, plain::RMSpropParamState>(optimizer, state) &&
      !make<LARS, LARSParamState>(optimizer, state) &&
      !make<LAMB, LAMBParamState>(optimizer, state))
    refuse(typeid(optimizer));
  return state;
}

at::Tensor fragment_of(const at::Tensor& tensor, const Shard& shard, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense())
    throw Error(Fault::unsupported,
                "a parameter that is a view with gaps in memory has no fragments");
  return tensor.as_strided({tensor.numel()}, {1}).slice(0, shard.begin, shard.end);
}

std::size_t encoded_size(OptimizerParamState& prototype) {
  return 1 + parts_of(prototype).tensors.size();
}

std::vector<at::Tensor> encode(OptimizerParamState* state, std::size_t count) {
  if (state == nullptr) return std::vector<at::Tensor>(count);
  const OptimizerStateParts parts = parts_of(*state);
  std::vector<std::int64_t> integers;
  for (const auto& [name, integer] : parts.integers) integers.push_back(*integer);
  std::vector<at::Tensor> tensors{at::tensor(integers, at::kLong)};
  for (const auto& [name, tensor] : parts.tensors) tensors.push_back(*tensor);
  return tensors;
}

void assemble(std::span<const at::Tensor> encoded, const Shard& shard, const at::Tensor& parameter,
              OptimizerParamState& whole) {
  const OptimizerStateParts parts = parts_of(whole);
  check(encoded.size() == 1 + parts.tensors.size() &&
            encoded[0].numel() == static_cast<std::int64_t>(parts.integers.size()),
        "the state of a shard is not that of this optimizer");
  for (std::size_t i = 0; i < parts.integers.size(); ++i)
    *parts.integers[i].second = encoded[0].data_ptr<std::int64_t>()[i];
  for (std::size_t i = 0; i < parts.tensors.size(); ++i)
    assemble(encoded[i + 1], shard, parameter, *parts.tensors[i].second);
}

std::unique_ptr<OptimizerParamState> cut(std::unique_ptr<OptimizerParamState> whole,
                                         const Shard& shard, const at::Tensor& parameter,
                                         const at::Tensor& stepped) {
  if (stepped.is_same(parameter)) return whole;
  auto fragment = whole->clone();
  for (const auto& [name, tensor] : parts_of(*fragment).tensors) {
    if (!tensor->defined()) continue;
    optim::require_state(parameter, *tensor);
    optim::lay_out_as(parameter, *tensor);
    *tensor = fragment_of(*tensor, shard, parameter).clone();
  }
  return fragment;
}

}  // namespace lockstep
