// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/exchange.h"

#include <utility>

namespace lockstep::nn {

using torch::nn::AnyModule;

Exchange::Exchange(torch::nn::SequentialImpl& sequential, std::string key, AnyModule replacement)
    : sequential_(&sequential), key_(std::move(key)), replacement_(std::move(replacement)) {
  const auto child = sequential.named_children()[key_];
  for (AnyModule& element : sequential)
    if (element.ptr() == child) elements_.push_back(&element);
}

std::optional<Exchange> Exchange::of(torch::nn::SequentialImpl& sequential, const std::string& key,
                                     AnyModule replacement) {
  Exchange exchange(sequential, key, std::move(replacement));
  if (exchange.elements_.empty()) return std::nullopt;
  return exchange;
}

void Exchange::apply() const {
  sequential_->replace_module(key_, replacement_.ptr());
  for (AnyModule* const element : elements_) *element = replacement_;
}

}  // namespace lockstep::nn
