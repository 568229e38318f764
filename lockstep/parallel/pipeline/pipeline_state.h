// The state of a pipeline's stages as a part of the whole model's.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/parallel/pipeline/rank_stages.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

// Parameters and buffers under the names of the whole model. A saved state has those of the whole
// model: wanted() compares all, and requests this rank's. Lifetime: `stages` outlive the result.
std::unique_ptr<Stateful> model_state(RankStages& stages);

// The state of an optimizer of this rank's parameters. Lifetime: both outlive the result.
std::unique_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer, RankStages& stages);

// This rank's parameters under the names by which they are saved.
NamedTensors saved_parameters(const RankStages& stages);

}  // namespace lockstep::parallel
