// Loading one checkpoint: first everything that a rank wants is read and verified, on all ranks; then
// it goes into the program's objects.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Parts of the checkpoint that the program has not asked for.
enum class UnknownParts { ignore, refuse };

// Collective; returns the step. `directory` is that of a checkpoint, or of several: then its `latest`.
// Errors: on all ranks the same; `states` are then as they were. As CheckpointReader's; misuse for what
// does not fit.
std::int64_t load_state(const std::filesystem::path& directory, const NamedStates& states,
                        const CheckpointRanks& ranks, UnknownParts unknown);

}  // namespace lockstep
