// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/exchange.h"

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <typeinfo>
#include <utility>

#include "lockstep/nn/layers.h"
#include "lockstep/tensor/generator_states.h"

namespace lockstep::nn {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;

template <class Theirs, class Ours>
bool exchange_if(const Module& module, AnyModule& result) {
  if (typeid(module) != typeid(Theirs)) return false;
  const KeptGenerator kept;  // Initial weights must not advance the generator.
  const auto& plain = static_cast<const Theirs&>(module);
  auto ours = std::make_shared<Ours>(plain.options);
  auto theirs = plain.named_parameters(/*recurse=*/false);
  for (auto& item : ours->named_parameters(/*recurse=*/false)) {
    const at::Tensor& parameter = theirs[item.key()];
    item.value().set_data(parameter.detach());
    item.value().set_requires_grad(parameter.requires_grad());
  }
  ours->train(plain.is_training());
  result = AnyModule(std::move(ours));
  return true;
}

}  // namespace

AnyModule exchanged(const Module& module) {
  AnyModule result;
  exchange_if<torch::nn::LinearImpl, LinearImpl>(module, result) ||
      exchange_if<torch::nn::EmbeddingImpl, EmbeddingImpl>(module, result) ||
      exchange_if<torch::nn::LayerNormImpl, LayerNormImpl>(module, result) ||
      exchange_if<torch::nn::DropoutImpl, DropoutImpl>(module, result);
  return result;
}

Exchange::Exchange(torch::nn::SequentialImpl& sequential, std::string key, AnyModule replacement)
    : sequential_(&sequential), key_(std::move(key)), replacement_(std::move(replacement)) {
  const auto child = sequential.named_children()[key_];
  for (AnyModule& element : sequential)
    if (element.ptr() == child) elements_.push_back(&element);
}

std::optional<Exchange> Exchange::of(Module& owner, const std::string& key, AnyModule replacement) {
  auto* const sequential = owner.as<torch::nn::SequentialImpl>();
  if (sequential == nullptr) return std::nullopt;
  Exchange exchange(*sequential, key, std::move(replacement));
  if (exchange.elements_.empty()) return std::nullopt;
  return exchange;
}

void Exchange::apply() const {
  sequential_->replace_module(key_, replacement_.ptr());
  for (AnyModule* const element : elements_) *element = replacement_;
}

}  // namespace lockstep::nn
