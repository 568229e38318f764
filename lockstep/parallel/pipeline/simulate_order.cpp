// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/simulate_order.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/action_places.h"

namespace lockstep {
namespace {

using parallel::ActionPlace;
using parallel::ActionPlaces;
using parallel::as_index;

void require_costs(const PipelineOrder& order, const std::vector<PipelineStageCost>& costs) {
  require(costs.size() == 1 || costs.size() == order.rank_of_stage.size(), [&] {
    return "simulate: costs of " + std::to_string(costs.size()) + " stages for an order of " +
           std::to_string(order.stages());
  });
  for (std::size_t stage = 0; stage < costs.size(); ++stage) {
    const auto& cost = costs[stage];
    for (const double value :
         {cost.forward, cost.backward_input, cost.backward_weight, cost.whole_backward, cost.send,
          cost.activation_bytes, cost.weight_bytes})
      require(std::isfinite(value) && value >= 0, [&] {
        return "simulate: a cost of stage " + std::to_string(stage) + " is " +
               std::to_string(value);
      });
  }
}

double duration_of(PipelineActionKind kind, const PipelineStageCost& cost) {
  switch (kind) {
    case PipelineActionKind::forward:
      return cost.forward;
    case PipelineActionKind::backward:
      return cost.whole_backward > 0 ? cost.whole_backward
                                     : cost.backward_input + cost.backward_weight;
    case PipelineActionKind::backward_input:
      return cost.backward_input;
    case PipelineActionKind::backward_weight:
      break;
  }
  return cost.backward_weight;
}

// Bytes added at the action's start or, if negative, freed at its end.
double kept_bytes(PipelineActionKind kind, const PipelineStageCost& cost) {
  switch (kind) {
    case PipelineActionKind::forward:
      return cost.activation_bytes;
    case PipelineActionKind::backward:
      return -cost.activation_bytes;
    case PipelineActionKind::backward_input:
      return cost.weight_bytes - cost.activation_bytes;
    case PipelineActionKind::backward_weight:
      break;
  }
  return -cost.weight_bytes;
}

int kept_microbatches(PipelineActionKind kind) {
  if (kind == PipelineActionKind::forward) return 1;
  return kind == PipelineActionKind::backward_input ? 0 : -1;
}

// How many actions of each rank have ended when an action starts, for any durations.
class EndedBefore {
 public:
  EndedBefore(const PipelineOrder& order, const ActionPlaces& places) {
    const std::size_t ranks = order.actions.size();
    for (const auto& actions : order.actions) counts_.emplace_back(actions.size());
    places.visit([&](ActionPlace here) {
      auto& counts = counts_[as_index(here.rank)][as_index(here.index)];
      counts = here.index > 0 ? counts_[as_index(here.rank)][as_index(here.index - 1)]
                              : std::vector<int>(ranks, 0);
      if (const auto needed =
              places.needed_by(order.actions[as_index(here.rank)][as_index(here.index)])) {
        const auto& before = counts_[as_index(needed->rank)][as_index(needed->index)];
        for (std::size_t rank = 0; rank < ranks; ++rank)
          counts[rank] = std::max(counts[rank], before[rank]);
      }
      counts[as_index(here.rank)] = here.index + 1;
    });
  }

  bool is_before(ActionPlace earlier, ActionPlace later) const {
    return earlier.index <
           counts_[as_index(later.rank)][as_index(later.index)][as_index(earlier.rank)];
  }

 private:
  std::vector<std::vector<std::vector<int>>> counts_;  // By rank, action, and rank.
};

struct SlotUse {
  ActionPlace taken;
  ActionPlace released;
};

// The most slots of one rank's `uses` in use at once: when one is taken, all others that may be
// unreleased.
int most_in_use(std::vector<SlotUse> uses, const EndedBefore& ended) {
  std::sort(uses.begin(), uses.end(),
            [](const SlotUse& a, const SlotUse& b) { return a.taken.index < b.taken.index; });
  std::ptrdiff_t most = 0;
  for (auto use = uses.begin(); use != uses.end(); ++use)
    most = std::max(most, 1 + std::count_if(uses.begin(), use, [&](const SlotUse& earlier) {
                            return !ended.is_before(earlier.released, use->taken);
                          }));
  return static_cast<int>(most);
}

}  // namespace

SimulatedPipeline simulate(const PipelineOrder& order,
                           const std::vector<PipelineStageCost>& costs) {
  check_pipeline_order(order);
  require_costs(order, costs);
  const auto cost_of = [&](int stage) { return costs[costs.size() == 1 ? 0 : as_index(stage)]; };
  const std::size_t ranks = order.actions.size();
  SimulatedPipeline simulated;
  simulated.actions.resize(ranks);
  simulated.peak_bytes.resize(ranks);
  simulated.peak_microbatches.resize(ranks);
  std::vector<double> bytes(ranks);
  std::vector<int> microbatches(ranks);
  double busy = 0;
  const ActionPlaces places(order);
  places.visit([&](ActionPlace here) {
    const std::size_t rank = as_index(here.rank);
    const PipelineAction& action = order.actions[rank][as_index(here.index)];
    auto& timed = simulated.actions[rank];
    double begin = timed.empty() ? 0 : timed.back().end;
    if (const auto needed = places.needed_by(action)) {
      const TimedPipelineAction& before =
          simulated.actions[as_index(needed->rank)][as_index(needed->index)];
      const int boundary = std::min(action.stage, before.action.stage);
      const double send = needed->rank == here.rank ? 0 : cost_of(boundary).send;
      begin = std::max(begin, before.end + send);
    }
    const PipelineStageCost cost = cost_of(action.stage);
    const double duration = duration_of(action.kind, cost);
    timed.push_back({action, begin, begin + duration});
    busy += duration;
    simulated.time = std::max(simulated.time, begin + duration);

    bytes[rank] += kept_bytes(action.kind, cost);
    microbatches[rank] += kept_microbatches(action.kind);
    simulated.peak_bytes[rank] = std::max(simulated.peak_bytes[rank], bytes[rank]);
    simulated.peak_microbatches[rank] =
        std::max(simulated.peak_microbatches[rank], microbatches[rank]);
  });
  if (simulated.time > 0)
    simulated.bubble = std::max(0., 1 - busy / (simulated.time * static_cast<double>(ranks)));
  return simulated;
}

PipelineSlots slots_of(const PipelineOrder& order) {
  check_pipeline_order(order);
  const ActionPlaces places(order);
  const EndedBefore ended(order, places);
  PipelineSlots slots;
  for (int stage = 0; stage + 1 < order.stages(); ++stage) {
    std::vector<SlotUse> outputs;
    std::vector<SlotUse> gradients;
    if (order.rank_of_stage[as_index(stage)] != order.rank_of_stage[as_index(stage + 1)])
      for (int microbatch = 0; microbatch < order.microbatches; ++microbatch) {
        outputs.push_back({places.forward(stage, microbatch), places.last(stage + 1, microbatch)});
        gradients.push_back(
            {places.gradient(stage + 1, microbatch), places.last(stage, microbatch)});
      }
    slots.outputs.push_back(most_in_use(std::move(outputs), ended));
    slots.gradients.push_back(most_in_use(std::move(gradients), ended));
  }
  return slots;
}

}  // namespace lockstep
