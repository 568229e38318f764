// The state of a fully sharded module of which no rank has whole parameters: each rank saves and
// loads its fragments, as parts of whole tensors. So checkpoints are those of module_state()
// (lockstep/tensor/module_state.h), and no rank ever has a whole copy.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/replicate/held_tensors.h"
#include "lockstep/tensor/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

struct FullyShardedModule {
  torch::nn::Module& module;
  std::shared_ptr<ShardedUnits> units;
  std::function<bool()> has_values;  // Or was made on the meta device, and has none yet.
  std::function<void()> loaded;      // To be called once it has.
};

// Lifetime: the module outlives the result.
std::unique_ptr<Stateful> fully_sharded_state(FullyShardedModule sharded);

// The fragments that this rank steps.
// Lifetime: as above.
std::unique_ptr<HeldTensors> held_fragments(FullyShardedModule sharded);

}  // namespace lockstep::parallel
