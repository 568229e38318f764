// Simulates a checkpoint in memory: joins the ranks' states, and returns the requested elements.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep::test {

// States of ranks, added one after the other. Thread safety: full.
class SavedState {
 public:
  // Copies memory that will change.
  void add(const StateDict& state, int rank) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, value] : state.values) {
      const auto& known = whole_.values.emplace(name, value).first->second;
      EXPECT_EQ(known, value) << name << " has other values on rank " << rank;
    }
    for (const auto& [name, tensor] : state.tensors) add(name, tensor, rank);
  }

  // Checks that every element was described once, or by all ranks.
  const StateDict& whole() const {
    for (const auto& [name, counts] : counts_)
      EXPECT_TRUE(counts.eq(1).all().item<bool>()) << name << " has gaps or overlaps";
    return whole_;
  }

 private:
  void add(const std::string& name, const StateTensor& tensor, int rank) {
    ASSERT_TRUE(tensor.boxes.empty()) << name << " has boxes, which only a checkpoint knows";
    if (tensor.is_whole()) {
      if (!tensor.of_rank_0 || rank == 0)
        whole_.tensors[name] = lockstep::whole(tensor.data.clone(at::MemoryFormat::Contiguous));
      return;
    }
    // In memory order, which is row-major without strides.
    const at::Tensor row_major = torch::empty(tensor.shape, at::kByte);
    const auto strides = tensor.strides.empty() ? row_major.strides().vec() : tensor.strides;
    auto& counts = counts_[name];
    auto& result = whole_.tensors[name];
    if (!counts.defined()) {
      result.data = torch::empty_strided(tensor.shape, strides, tensor.data.options());
      result.shape = tensor.shape;
      counts = torch::zeros({result.data.numel()}, at::kInt);
    }
    const std::int64_t end = tensor.begin + tensor.data.numel();
    result.data.as_strided({counts.numel()}, {1}).slice(0, tensor.begin, end).copy_(tensor.data);
    counts.slice(0, tensor.begin, end).add_(1);
  }

  std::mutex mutex_;
  StateDict whole_;
  std::map<std::string, at::Tensor> counts_;
};

// Returns the argument of wanted().
inline StateDict catalogue_of(const StateDict& saved) {
  StateDict catalogue{.tensors = {}, .values = saved.values};
  for (const auto& [name, tensor] : saved.tensors)
    catalogue.tensors.emplace(
        name, whole(torch::empty(tensor.shape, tensor.data.options().device(at::kMeta))));
  return catalogue;
}

// Loads the requested elements, and returns the request.
inline StateRequest load(Stateful& state, const StateDict& saved) {
  const StateRequest request = state.wanted(catalogue_of(saved));
  StateDict found{.tensors = {}, .values = saved.values};
  for (const auto& [name, range] : request) {
    EXPECT_TRUE(range.boxes.empty())
        << name << " is wanted in boxes, which only a checkpoint knows";
    const StateTensor& tensor = saved.tensors.at(name);
    at::Tensor data = tensor.data.detach().clone(at::MemoryFormat::Contiguous);
    if (range.end - range.begin < data.numel())
      data = data.flatten().slice(0, range.begin, range.end).clone();
    if (range.into.defined()) data = at::Tensor(range.into).copy_(data.view_as(range.into));
    found.tensors.emplace(name,
                          StateTensor{.data = data, .shape = tensor.shape, .begin = range.begin});
  }
  state.load_state_dict(std::move(found));
  return request;
}

}  // namespace lockstep::test
