// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/distinct_tensors.h"

#include <c10/util/flat_hash_map.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

const at::Tensor& tensor_of(const at::Tensor& tensor) { return tensor; }
const at::Tensor& tensor_of(const std::pair<std::string, at::Tensor>& named) {
  return named.second;
}

// Optimizers call it in each step: allocates `seen` once.
template <class Items>
Items without_repeated(Items items) {
  ska::flat_hash_set<const void*> seen;
  seen.reserve(items.size());
  std::erase_if(items, [&](const auto& item) {
    return !seen.insert(tensor_of(item).unsafeGetTensorImpl()).second;
  });
  return items;
}

}  // namespace

std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors) {
  return without_repeated(std::move(tensors));
}

NamedTensors distinct(NamedTensors tensors) { return without_repeated(std::move(tensors)); }

}  // namespace lockstep
