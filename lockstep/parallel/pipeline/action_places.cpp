// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/action_places.h"

namespace lockstep::parallel {

ActionPlaces::ActionPlaces(const PipelineOrder& order)
    : order_(order), places_(order.rank_of_stage.size() * as_index(order.microbatches)) {
  for (int rank = 0; rank < order.ranks(); ++rank) {
    int index = 0;
    for (const auto& [stage, kind, microbatch] : order.actions[as_index(rank)]) {
      const ActionPlace here{rank, index++};
      OfMicrobatch& places =
          places_[as_index(stage) * as_index(order.microbatches) + as_index(microbatch)];
      switch (kind) {
        case PipelineActionKind::forward:
          places.forward = here;
          break;
        case PipelineActionKind::backward:
          places.gradient = places.last = here;
          break;
        case PipelineActionKind::backward_input:
          places.gradient = here;
          break;
        case PipelineActionKind::backward_weight:
          places.last = here;
          break;
      }
    }
  }
}

std::optional<ActionPlace> ActionPlaces::needed_by(const PipelineAction& action) const {
  const auto& [stage, kind, microbatch] = action;
  if (kind == PipelineActionKind::backward_weight) return std::nullopt;
  if (kind == PipelineActionKind::forward)
    return stage > 0 ? std::optional(forward(stage - 1, microbatch)) : std::nullopt;
  return stage + 1 < order_.stages() ? std::optional(gradient(stage + 1, microbatch))
                                     : std::nullopt;
}

}  // namespace lockstep::parallel
