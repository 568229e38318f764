// Chooses DistributedDataParallel's GradientSink: by its options, and before the first pass by
// register_comm_hook() and shard_gradients().
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

// Whether a thread reduces gradients during backward(). Collective: returns the same on all ranks.
// An explicit option decides. Otherwise true for several ranks if `device` is not the CPU, if the
// ranks are on several hosts, or if they have enough cores. Enough are as many as all their
// intra-op threads, plus one per rank.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

class SinkChoice {
 public:
  struct Chosen {
    std::unique_ptr<GradientSink> sink;
    ProcessGroup group;  // Its ranks agree on passes.
  };

  // Collective. The `parameters` that require gradients are on one device. `sparse` are parameters
  // with sparse gradients. A sink that is made elsewhere may need a group in addition to the
  // caller's.
  // Errors: misuse if no parameter requires a gradient; unsupported for gradients that cannot be
  // averaged.
  SinkChoice(NamedTensors parameters, const std::vector<at::Tensor>& sparse,
             const ProcessGroup& group, const DistributedDataParallelOptions& options,
             bool needs_own_group);

  // Collective: sinks by the options, for a communication hook, and for gradients that are averaged
  // on one rank each. Features (features.h) determines which of them are allowed.
  std::unique_ptr<GradientSink> sink() const;
  Chosen with_hook(CommunicationHook hook) const;
  Chosen with_owners(std::vector<int> owners) const;

  // Those that require gradients. Sinks refer to them.
  const NamedTensors& parameters() const { return parameters_; }

  // The ranks, for calls concurrent with the caller's, if the sink needs that.
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
