// The plan of a traced model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/prune/channel_pruner.h"
#include "lockstep/prune/pruning_plan.h"
#include "lockstep/prune/traced_model.h"

namespace lockstep::prune {

// A plan, and the cuts of each of its groups alone.
struct PlannedCuts {
  PruningPlan plan;
  std::vector<std::vector<ChannelCut>> by_group;
};

// The sparsity that the program set for the group of these layers, if any; 0 excludes it.
using OwnSparsity = std::function<std::optional<double>(const std::vector<std::string>& layers)>;

// Collective with a group: importances are means over its ranks.
// Errors: mismatch if the ranks' groups or options differ; those of importances_of().
PlannedCuts plan_cuts(const TracedModel& model, const OwnSparsity& own_sparsity,
                      const ChannelPrunerOptions& options,
                      const std::optional<ProcessGroup>& group);

}  // namespace lockstep::prune
