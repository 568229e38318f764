// Loading one checkpoint: first the ranks verify all of its tensors, each a share; then each reads
// what it wants, into the program's memory where that is possible; then the program's objects take
// it. So nothing is touched by a damaged checkpoint, and no second copy of the state is needed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Parts of the checkpoint that the program has not asked for.
enum class UnknownParts { ignore, refuse };

// Collective; returns the step. `directory` is that of a checkpoint, or of several: then its
// `latest`.
// Errors: on all ranks the same; `states` are then as they were, unless a file that was whole could
// not be read a second time, which the message says. As CheckpointReader's; misuse or mismatch for
// what does not fit.
std::int64_t load_state(const std::filesystem::path& directory, const NamedStates& states,
                        const CheckpointRanks& ranks, UnknownParts unknown);

}  // namespace lockstep
