// The plan of a ChannelPruner: groups of channels, and the model's size.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Channels that can only be removed together, for example because results are added.
struct ChannelGroup {
  std::vector<std::string> outputs;  // They lose channels of their output.
  std::vector<std::string> inputs;   // They lose channels of their input.
  std::int64_t channels = 0;         // Before.
  std::int64_t kept = 0;             // After; at least 1.
  std::string whole_because = {};    // Why no channel can be removed, if so.
};

// A dimension of a parameter or buffer, and its remaining indices.
struct ChannelCut {
  std::string tensor;  // Its name in the module.
  std::int64_t dim = 0;
  std::vector<std::int64_t> kept = {};  // In increasing order.

  friend bool operator==(const ChannelCut&, const ChannelCut&) = default;
};

struct ModelSize {
  std::int64_t parameters = 0;
  std::int64_t macs = 0;  // In products with weights, for one sample.
};

struct PruningPlan {
  std::vector<ChannelGroup> groups;  // In the order of their layers in the model.
  std::vector<ChannelCut> cuts;      // Equal on all ranks.
  ModelSize before, after;
};

// A line for each group, and the sizes.
//   conv1, bn1                         64 -> 32      read by layer1.0.conv1
//   fc                                 1000, whole   the model's output
//   parameters 11,689,512 -> 3,055,880, MACs 1,814,073,344 -> 483,149,824
LOCKSTEP_API std::string to_string(const PruningPlan& plan);

}  // namespace lockstep
