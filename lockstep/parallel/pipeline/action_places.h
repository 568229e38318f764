// Finds actions in a pipeline's order, and visits them by dependencies.
//
// Thread safety: several threads may read.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep::parallel {

inline std::size_t as_index(int index) { return static_cast<std::size_t>(index); }

struct ActionPlace {
  int rank = 0;
  int index = 0;  // In the rank's actions.
};

// `order` outlives this object, and has each action once, on its stage's rank.
class ActionPlaces {
 public:
  explicit ActionPlaces(const PipelineOrder& order);

  ActionPlace forward(int stage, int microbatch) const { return of(stage, microbatch).forward; }
  // Computes the gradient for the previous stage.
  ActionPlace gradient(int stage, int microbatch) const { return of(stage, microbatch).gradient; }
  // The last that needs the stage's input and the next stage's gradient.
  ActionPlace last(int stage, int microbatch) const { return of(stage, microbatch).last; }

  // The neighbouring stage's action whose result `action` needs.
  std::optional<ActionPlace> needed_by(const PipelineAction& action) const;

  // Calls visit(place) for each action, after its rank's previous action and the action that it
  // needs. Returns the number of visited actions by rank: all, unless ranks deadlock.
  template <class Visit>
  std::vector<int> visit(const Visit& visit) const;

 private:
  struct OfMicrobatch {
    ActionPlace forward;
    ActionPlace gradient;
    ActionPlace last;
  };
  const OfMicrobatch& of(int stage, int microbatch) const {
    return places_[as_index(stage) * as_index(order_.microbatches) + as_index(microbatch)];
  }

  const PipelineOrder& order_;
  std::vector<OfMicrobatch> places_;  // By stage and microbatch.
};

template <class Visit>
std::vector<int> ActionPlaces::visit(const Visit& visit) const {
  std::vector<int> done(order_.actions.size(), 0);
  const auto is_ready = [&](const PipelineAction& action) {
    const auto needed = needed_by(action);
    return !needed || needed->index < done[as_index(needed->rank)];
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < order_.ranks(); ++rank) {
      const auto& actions = order_.actions[as_index(rank)];
      int& next = done[as_index(rank)];
      for (; as_index(next) < actions.size() && is_ready(actions[as_index(next)]); ++next) {
        visit(ActionPlace{rank, next});
        progress = true;
      }
    }
  }
  return done;
}

}  // namespace lockstep::parallel
