// Selects the channels to remove by their importances.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/toolkit/prune/channel_groups.h"
#include "lockstep/toolkit/prune/channel_pruner.h"
#include "lockstep/toolkit/prune/channel_trace.h"
#include "lockstep/toolkit/prune/pruning_plan.h"

namespace lockstep::prune {

struct Choice {
  const TracedGroup* group;
  std::vector<double> importances = {};   // By channel; empty if the group stays whole.
  std::optional<double> sparsity = {};    // Replaces that of the options.
  std::vector<std::size_t> removed = {};  // Channels of the group.
};

void choose_channels(std::vector<Choice>& choices, const ChannelPrunerOptions& options);

// Remaining indices per dimension that loses channels. Groups may share a dimension.
std::vector<ChannelCut> cuts_of(std::span<const Choice> choices, const ChannelTrace& trace);

}  // namespace lockstep::prune
