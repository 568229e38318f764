// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace lockstep::prune {
namespace {

using Dimension = std::pair<std::size_t, std::size_t>;  // A tensor's.

// By set of labels, in the tensors' order.
std::map<Label, Channel> channels_of(const ChannelTrace& trace) {
  std::map<Label, Channel> channels;
  for (std::size_t t = 0; t < trace.tensors.size(); ++t) {
    const auto& dims = trace.tensors[t].shape.dims;
    for (std::size_t d = 0; d < dims.size(); ++d)
      for (std::size_t i = 0; i < dims[d].size(); ++i) {
        Channel& channel = channels[trace.labels.set_of(dims[d][i])];
        channel.places.push_back({t, d, i});
        if (trace.labels.is_filter(dims[d][i])) channel.filters.push_back({t, d, i});
      }
  }
  std::erase_if(channels, [](const auto& item) { return item.second.filters.empty(); });
  return channels;
}

std::set<Dimension> dimensions_of(const std::vector<ChannelPlace>& places) {
  std::set<Dimension> dimensions;
  for (const ChannelPlace& place : places) dimensions.emplace(place.tensor, place.dim);
  return dimensions;
}

// "layer1.0.conv1" for "layer1.0.conv1.weight"; for the model's parameters, the name.
std::string layer_of(const std::string& tensor) {
  const std::size_t dot = tensor.rfind('.');
  return dot == std::string::npos ? tensor : tensor.substr(0, dot);
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

// Whether a layer reads the channels: they are in one dimension of its weight, filters in another.
bool is_taken(const ChannelTrace& trace, const std::set<Dimension>& filters, Dimension place) {
  if (filters.contains(place)) return false;
  const auto& dims = trace.tensors[place.first].shape.dims;
  return std::any_of(dims.begin(), dims.end(), [&](const LabelledDim& dim) {
    return !dim.empty() && trace.labels.is_filter(dim.front());
  });
}

void describe(const ChannelTrace& trace, TracedGroup& group) {
  const Channel& channel = group.channels.front();
  const std::set<Dimension> filters = dimensions_of(channel.filters);
  for (const auto& [tensor, dim] : filters)
    add_once(group.layers, layer_of(trace.tensors[tensor].name));
  for (const Dimension& place : dimensions_of(channel.places))
    add_once(is_taken(trace, filters, place) ? group.described.inputs : group.described.outputs,
             layer_of(trace.tensors[place.first].name));
  group.described.channels = static_cast<std::int64_t>(group.channels.size());
}

}  // namespace

std::vector<TracedGroup> groups_of(const ChannelTrace& trace) {
  std::vector<TracedGroup> groups;
  std::map<std::set<Dimension>, std::size_t> known;
  for (auto& [label, channel] : channels_of(trace)) {
    const auto [found, is_new] = known.emplace(dimensions_of(channel.places), groups.size());
    if (is_new) groups.emplace_back();
    TracedGroup& group = groups[found->second];
    group.channels.push_back(std::move(channel));
    if (const std::string* const reason = trace.labels.pinned(label))
      group.described.whole_because = *reason;
  }
  for (TracedGroup& group : groups) describe(trace, group);
  return groups;
}

}  // namespace lockstep::prune
