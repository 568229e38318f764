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

// Collective: DistributedDataParallelOptions::overlap or its default. On one host, in CPU memory,
// the default needs a core per intra-op thread of each rank, and one more per rank.
bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device);

class SinkChoice {
 public:
  struct Chosen {
    std::unique_ptr<GradientSink> sink;
    ProcessGroup group;  // In which ranks agree on passes.
  };

  // Collective. Trained `parameters` are on one device. `sparse`: with sparse gradients.
  // `needs_own_group`: for the caller's own sink.
  // Errors: misuse without trained parameters; unsupported for gradients that cannot be averaged.
  SinkChoice(NamedTensors parameters, const std::vector<at::Tensor>& sparse,
             const ProcessGroup& group, const DistributedDataParallelOptions& options,
             bool needs_own_group);

  // Collective.
  std::unique_ptr<GradientSink> sink() const;
  Chosen with_hook(CommunicationHook hook) const;
  Chosen with_owners(std::vector<int> owners) const;

  // The trained ones, to which sinks refer.
  const NamedTensors& parameters() const { return parameters_; }

  // The given group or, for a sink that calls it concurrently, a new one of the same ranks.
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
