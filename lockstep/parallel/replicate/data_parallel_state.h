// The state of the module that a DistributedDataParallel holds: as module_state()'s
// (lockstep/tensor/module_state.h), also of shared parameters, which rank 0 loads for all.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/parallel/replicate/data_parallel_base.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Loading is collective where parameters are shared: edit_parameters().
// Lifetime: `ddp` outlives it.
LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);

}  // namespace lockstep
