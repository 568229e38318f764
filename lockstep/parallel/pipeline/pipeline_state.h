// The state of a pipeline's stages as a part of the whole model's. Thread safety: none. Lifetime:
// arguments outlive the results.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/parallel/pipeline/rank_stages.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

// Parameters and buffers under the names of the whole model. Loading compares all tensors, and
// reads this rank's.
std::unique_ptr<Stateful> model_state(RankStages& stages);

// For an optimizer of this rank's parameters.
std::unique_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer, RankStages& stages);

// This rank's, under the names by which they are saved.
NamedTensors saved_parameters(const RankStages& stages);

}  // namespace lockstep::parallel
