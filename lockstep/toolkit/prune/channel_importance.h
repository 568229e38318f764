// Channel importances.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "lockstep/toolkit/prune/channel_groups.h"
#include "lockstep/toolkit/prune/channel_pruner.h"
#include "lockstep/toolkit/prune/channel_trace.h"

namespace lockstep::prune {

// By channel; empty for Importance::batch_norm and a group without a BatchNorm. Errors: misuse for
// Importance::taylor without a gradient, and for importances that are not finite.
std::optional<std::vector<double>> importances_of(const TracedGroup& group,
                                                  const ChannelTrace& trace, Importance importance);

}  // namespace lockstep::prune
