// Averages gradients over all ranks by the end of backward(): what DistributedDataParallel is
// made of beside its forward().
//
// A hook on each parameter's gradient accumulator puts the gradient into its bucket, times
// 1 / world_size, and makes `.grad` the bucket's view. The last act of backward() is then one
// blocking all_reduce in place: with one core for each rank, which is then computing gradients,
// a thread that reduced earlier buckets meanwhile would only take its time from it.
// The arithmetic is PyTorch's (reducer.cpp): scaled first, then summed.
//
// Thread safety: as backward() itself: one call at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradient_buckets.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

class LOCKSTEP_API Reducer {
 public:
  // Collective. Of `parameters`, those that require gradients are reduced. They must outlive the
  // reducer or be kept alive by it, which it does.
  Reducer(NamedTensors parameters, ProcessGroup group);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Says whether the backward() passes from now on are averaged; otherwise gradients accumulate
  // on this rank alone. backward() throws what a collective throws, and misuse, naming the
  // parameters, when it was to be averaged and some had no part in the loss.
  void prepare(bool synchronize) { synchronize_ = synchronize; }

 private:
  void on_gradient(std::size_t index);
  void begin_backward();
  void finish_backward();
  [[noreturn]] void throw_unused() const;

  struct Hook {
    c10::intrusive_ptr<torch::autograd::Node> accumulator;  // Lives only as long as we hold it.
    std::uintptr_t key;
  };

  const ProcessGroup group_;
  const NamedTensors parameters_;
  const GradientBuckets buckets_;
  const at::Tensor scale_;  // 1 / world_size.
  std::vector<Hook> hooks_;
  int graph_task_ = -1;          // The backward() under way, or the last one;
  std::vector<bool> ready_;      // whose gradient has come in it,
  std::size_t ready_count_ = 0;  // and how many.
  bool synchronize_ = true;
};

}  // namespace lockstep
