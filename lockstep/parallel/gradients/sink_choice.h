// Which GradientSink a DistributedDataParallel has: chosen by its options, and exchanged before the
// first pass by register_comm_hook() and shard_gradients().
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class SinkChoice {
  enum class Kind : std::uint8_t;

 public:
  // Collective. The `parameters` that require gradients are on one device.
  // Errors: misuse when none does; unsupported for gradients that cannot be averaged.
  SinkChoice(NamedTensors parameters, const ProcessGroup& group,
             const DistributedDataParallelOptions& options);

  // Collective. By the options alone.
  std::unique_ptr<GradientSink> sink() const;

  // Those that require gradients. Sinks refer to them.
  const NamedTensors& parameters() const { return parameters_; }

  // The ranks, for calls beside the caller's own where the sink needs that.
  const ProcessGroup& group() const { return group_; }

  // Whether gradients are reduced during backward().
  bool is_overlapped() const { return overlapped_ || kind_ == Kind::owned; }
  bool shards_gradients() const { return kind_ == Kind::owned; }

  // What the choice of another sink depends on.
  struct ReducerState {
    bool has_passed = false;  // A pass was averaged.
    bool has_others = false;  // Another reducer has some of the parameters.
  };

  struct Chosen {
    std::unique_ptr<GradientSink> sink;
    ProcessGroup group;  // Its ranks agree on the passes.
    Kind kind;
  };

  // Collective: the sink for `hook`, and the one for the `owners` of gradients, which is empty if
  // this rank is alone. It counts from confirm() on, which is called once the reducer has it.
  // Errors: as DistributedDataParallel's calls.
  Chosen with_hook(ReducerState reducer, CommunicationHook hook) const;
  std::optional<Chosen> with_owners(ReducerState reducer, std::vector<int> owners) const;
  void confirm(const Chosen& chosen);

 private:
  enum class Kind : std::uint8_t {
    averaged,  // In backward(), unless this rank is alone.
    hooked,    // By a communication hook.
    owned,     // On one rank each.
    shared,    // By SharedOptimizer.
    pieces,    // By train_pieces().
  };

  static Kind kind_of(const DistributedDataParallelOptions& options);
  void require_shardable(ReducerState reducer) const;

  const DistributedDataParallelOptions options_;
  const NamedTensors parameters_;
  Kind kind_;
  const bool overlapped_;
  ProcessGroup group_;
};

}  // namespace lockstep
