// The parameters that a rank holds: all, or its own parts of shared ones. Ranks that share
// parameters hold a copy together: each element, and data stored with it, such as an average, is
// on one rank.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

class ParameterStore;

}  // namespace lockstep::parallel

namespace lockstep {

class DataParallelBase;

class LOCKSTEP_API HeldTensors {
 public:
  virtual ~HeldTensors() = default;

  // Each parameter, or its master (FullyShardedOptions::param_type), under its first name, sharing
  // its memory.
  virtual std::map<std::string, StateTensor> tensors() const = 0;

  // That together hold a copy; null if this rank has its own.
  virtual const ProcessGroup* sharing_ranks() const = 0;

  // Errors: as ParameterStore::require_intact().
  virtual void require_intact() const = 0;

  // Collective over sharing_ranks(): `change` writes to these tensors while no rank reads a
  // parameter.
  virtual void write(const std::function<void()>& change) = 0;

  // On this rank only. Shared parameters are then partially updated.
  virtual void write_alone(const std::function<void()>& change) = 0;
};

// Lifetime: `ddp` outlives the result.
LOCKSTEP_API std::unique_ptr<HeldTensors> held_tensors_of(DataParallelBase& ddp);

LOCKSTEP_API std::unique_ptr<HeldTensors> whole_tensors_of(const torch::nn::Module& module);

// This rank's 1 / group.size() of each parameter in `store`.
std::unique_ptr<HeldTensors> slices_held(const torch::nn::Module& module,
                                         std::shared_ptr<parallel::ParameterStore> store,
                                         const ProcessGroup& group);

}  // namespace lockstep
