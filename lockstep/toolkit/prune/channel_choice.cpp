// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_choice.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace lockstep::prune {
namespace {

// By rising importance; among equal ones the last first, as topk() of the rest.
std::vector<std::size_t> ranked(const std::vector<double>& importances) {
  std::vector<std::size_t> order(importances.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return importances[one] < importances[other];
  });
  return order;
}

// Leaves a multiple of `round_to` channels.
std::size_t removable(std::size_t channels, std::size_t wanted, std::int64_t round_to) {
  const auto multiple = static_cast<std::size_t>(round_to);
  const std::size_t kept = std::max<std::size_t>(channels - std::min(wanted, channels), 1);
  return channels - std::min(channels, (kept + multiple - 1) / multiple * multiple);
}

// Rounded down, with a tolerance: 0.7 of 10 is 7, not 6.999...
std::size_t share_of(double sparsity, std::size_t channels) {
  return static_cast<std::size_t>(sparsity * static_cast<double>(channels) + 1e-9);
}

void choose(Choice& choice, std::size_t count) {
  choice.removed = ranked(choice.importances);
  choice.removed.resize(count);
}

// Channels kept by round_to, or as their group's last, are not replaced.
void choose_globally(std::vector<Choice*>& choices, const ChannelPrunerOptions& options) {
  std::vector<std::pair<double, std::size_t>> all;  // With the choice.
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto& own = choices[i]->importances;
    const double mean =
        std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(own.size());
    for (const double importance : own) all.emplace_back(mean > 0 ? importance / mean : 0, i);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<std::size_t> counts(choices.size());
  for (std::size_t k = 0; k < share_of(options.sparsity, all.size()); ++k) ++counts[all[k].second];
  for (std::size_t i = 0; i < choices.size(); ++i)
    choose(*choices[i], removable(choices[i]->importances.size(), counts[i], options.round_to));
}

}  // namespace

void choose_channels(std::vector<Choice>& choices, const ChannelPrunerOptions& options) {
  std::vector<Choice*> together;
  for (Choice& choice : choices) {
    if (choice.importances.empty()) continue;
    const std::size_t channels = choice.importances.size();
    const double sparsity = choice.sparsity.value_or(options.sparsity);
    if (options.global && !choice.sparsity)
      together.push_back(&choice);
    else
      choose(choice, removable(channels, share_of(sparsity, channels), options.round_to));
  }
  choose_globally(together, options);
}

std::vector<ChannelCut> cuts_of(std::span<const Choice> choices, const ChannelTrace& trace) {
  std::map<std::pair<std::size_t, std::size_t>, std::set<std::size_t>> removed;
  for (const Choice& choice : choices)
    for (const std::size_t channel : choice.removed)
      for (const ChannelPlace& place : choice.group->channels[channel].places)
        removed[{place.tensor, place.dim}].insert(place.index);
  std::vector<ChannelCut> cuts;
  for (const auto& [dimension, indices] : removed) {
    const auto& held = trace.tensors[dimension.first];
    ChannelCut cut{.tensor = held.name, .dim = static_cast<std::int64_t>(dimension.second)};
    for (std::size_t i = 0; i < held.shape.dims[dimension.second].size(); ++i)
      if (!indices.contains(i)) cut.kept.push_back(static_cast<std::int64_t>(i));
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

}  // namespace lockstep::prune
