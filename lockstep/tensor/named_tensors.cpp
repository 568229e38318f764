// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/named_tensors.h"

#include <torch/nn/module.h>

#include <iterator>

namespace lockstep {
namespace {

template <class Items>
NamedTensors defined_ones(const Items& items) {
  NamedTensors all;
  for (const auto& item : items)
    if (item.value().defined()) all.emplace_back(item.key(), item.value());
  return all;
}

}  // namespace

NamedTensors named_parameters(const torch::nn::Module& module) {
  return defined_ones(module.named_parameters());
}

NamedTensors named_buffers(const torch::nn::Module& module) {
  return defined_ones(module.named_buffers());
}

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors all = named_parameters(module);
  NamedTensors buffers = named_buffers(module);
  all.insert(all.end(), std::move_iterator(buffers.begin()), std::move_iterator(buffers.end()));
  return all;
}

}  // namespace lockstep
