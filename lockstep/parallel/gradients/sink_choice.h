// The choice of DistributedDataParallel's GradientSink: by its options, and before the first pass
// by register_comm_hook() and shard_gradients().
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Whether gradients are reduced on a thread, beside backward(). Collective: returns the same on all
// ranks. An explicit option decides. Otherwise returns true for several ranks if one of these
// holds: the gradients' `device` is not the CPU; the ranks are on several hosts; together they may
// run on as many cores as they have intra-op threads, plus one per rank.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

class SinkChoice {
 public:
  struct Chosen {
    std::unique_ptr<GradientSink> sink;
    ProcessGroup group;  // Its ranks agree on the passes.
  };

  // Collective. The `parameters` that require gradients are on one device. A sink that is made
  // elsewhere may need a group beside the caller's. `sparse` are parameters with sparse gradients.
  // Errors: misuse when none does; unsupported for gradients that cannot be averaged.
  SinkChoice(NamedTensors parameters, const std::vector<at::Tensor>& sparse,
             const ProcessGroup& group, const DistributedDataParallelOptions& options,
             bool needs_own_group);

  // Collective: by the options alone, for a communication hook, and for gradients that are averaged
  // on one rank each. Features (features.h) says which of them can be chosen.
  std::unique_ptr<GradientSink> sink() const;
  Chosen with_hook(CommunicationHook hook) const;
  Chosen with_owners(std::vector<int> owners) const;

  // Those that require gradients. Sinks refer to them.
  const NamedTensors& parameters() const { return parameters_; }

  // The ranks, for calls beside the caller's own where the sink needs that.
  const ProcessGroup& group() const { return group_; }

  // Whether gradients are reduced during backward(), by the options alone.
  bool is_overlapped() const { return overlapped_; }

 private:
  std::unique_ptr<GradientSink> dense_sink() const;

  const DistributedDataParallelOptions options_;
  const NamedTensors parameters_;
  const std::vector<bool> is_sparse_;  // By parameter.
  const bool overlapped_;
  const ProcessGroup group_;
};

}  // namespace lockstep::parallel
