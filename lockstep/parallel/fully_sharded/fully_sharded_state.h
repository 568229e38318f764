// The state of a fully sharded module: each rank saves and loads its fragments as parts of whole
// tensors. Checkpoints are those of state_of(module).
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
  std::function<bool()> has_values;  // False until a module on meta has values.
  std::function<void()> loaded;      // Called once it has values.
};

// Lifetime: the module outlives the result.
std::unique_ptr<Stateful> fully_sharded_state(FullyShardedModule sharded);

// This rank's fragments. Lifetime: as above.
std::unique_ptr<HeldTensors> held_fragments(FullyShardedModule sharded);

}  // namespace lockstep::parallel
