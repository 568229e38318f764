// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/saved_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

namespace lockstep::test {

StateDict state_at(std::int64_t step, int rank, int world_size) {
  const auto factor = static_cast<double>(step) + 0.5;
  constexpr std::int64_t elements = 4000;
  StateDict state;
  state.tensors["weight"] = whole(at::arange(4500, at::kFloat).view({90, 50}) * factor);
  state.tensors["bias"] = whole(at::full({700}, factor, at::kFloat));
  state.tensors["steps"] = whole(at::full({}, step, at::kLong));
  const std::int64_t begin = elements * rank / world_size;
  const std::int64_t end = elements * (rank + 1) / world_size;
  const at::Tensor moment = at::arange(elements, at::kFloat) / factor;
  state.tensors["moment"] = {
      .data = moment.slice(0, begin, end), .shape = {elements}, .begin = begin};
  state.values["step"] = step;
  state.values["rate"] = 1.0 / factor;
  return state;
}

bool is_same(const StateDict& a, const StateDict& b) {
  if (a.values != b.values || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || !at::equal(tensor.data, other->second.data)) return false;
  }
  return true;
}

}  // namespace lockstep::test
