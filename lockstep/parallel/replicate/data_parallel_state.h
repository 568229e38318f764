// The state of a DistributedDataParallel's module, as module_state()'s
// (lockstep/tensor/torch_state.h). Works for shared parameters too, which rank 0 loads for all
// ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/parallel/replicate/data_parallel_base.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Loading shared parameters is collective: edit_parameters().
// Lifetime: `ddp` outlives the result.
LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);

}  // namespace lockstep
