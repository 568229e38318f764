// Groups of channels that can only be removed together.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/toolkit/prune/channel_trace.h"
#include "lockstep/toolkit/prune/pruning_plan.h"

namespace lockstep::prune {

// `tensor` is an index in ChannelTrace::tensors.
struct ChannelPlace {
  std::size_t tensor;
  std::size_t dim;
  std::size_t index;
};

struct Channel {
  std::vector<ChannelPlace> places;
  std::vector<ChannelPlace> filters;  // Where a layer computes the channel.
};

// Channels in the same dimensions of the same tensors.
struct TracedGroup {
  std::vector<std::string> layers;  // They compute the channels.
  std::vector<Channel> channels;    // In the order of the first layer.
  ChannelGroup described;           // Without `kept`.
};

// In the order of their layers in the model.
std::vector<TracedGroup> groups_of(const ChannelTrace& trace);

}  // namespace lockstep::prune
