// The plan of a traced model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/toolkit/prune/channel_pruner.h"
#include "lockstep/toolkit/prune/pruning_plan.h"
#include "lockstep/toolkit/prune/traced_model.h"

namespace lockstep::prune {

// A plan, and the cuts of each group alone.
struct PlannedCuts {
  PruningPlan plan;
  std::vector<std::vector<ChannelCut>> by_group;
};

// The sparsity that the program set for the group of these layers; 0 excludes it.
using OwnSparsity = std::function<std::optional<double>(const std::vector<std::string>& layers)>;

// Collective: importances are means over ranks.
// Errors: mismatch for different groups or options; importances_of()'s.
PlannedCuts plan_cuts(const TracedModel& model, const OwnSparsity& own_sparsity,
                      const ChannelPrunerOptions& options, const ProcessGroup& group);

}  // namespace lockstep::prune
