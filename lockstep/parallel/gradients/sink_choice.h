// Chooses DistributedDataParallel's GradientSink.
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

// Collective: whether a thread reduces gradients during backward(). By default true for several
// ranks on another device than the CPU, on several hosts, or if cores suffice. These are one per
// intra-op thread, and one per rank.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

class SinkChoice {
 public:
  struct Chosen {
    std::unique_ptr<GradientSink> sink;
    ProcessGroup group;  // Its ranks agree on passes.
  };

  // Collective. Trained `parameters` are on one device; `sparse` have sparse gradients.
  // `needs_own_group`: a sink made elsewhere needs one.
  // Errors: misuse if no parameter requires a gradient; unsupported for gradients that cannot be
  // averaged.
  SinkChoice(NamedTensors parameters, const std::vector<at::Tensor>& sparse,
             const ProcessGroup& group, const DistributedDataParallelOptions& options,
             bool needs_own_group);

  // Collective: by the options, for a communication hook, and for gradients averaged on one rank
  // each.
  std::unique_ptr<GradientSink> sink() const;
  Chosen with_hook(CommunicationHook hook) const;
  Chosen with_owners(std::vector<int> owners) const;

  // Those that require gradients. Sinks refer to them.
  const NamedTensors& parameters() const { return parameters_; }

  // The ranks; a group for calls concurrent with the caller's, if the sink needs that.
  const ProcessGroup& group() const { return group_; }

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
