// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/pruning_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep {
namespace {

std::string text_of(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > shown) {
    text += " and ";
    text += std::to_string(names.size() - shown) + " more";
  }
  return text;
}

std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3; place -= 3) text.insert(place - 3, 1, ',');
  return text;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size() + 2), ' ');
  return text;
}

std::string line_of(const ChannelGroup& group, std::size_t width) {
  const std::string channels = std::to_string(group.channels);
  std::string line = padded(text_of(group.outputs), width);
  if (!group.whole_because.empty())
    return line + padded(channels + ", whole", 15) + group.whole_because;
  std::string sizes = channels;
  sizes += " -> ";
  sizes += std::to_string(group.kept);
  line += padded(std::move(sizes), 15);
  if (!group.inputs.empty()) line += "read by " + text_of(group.inputs);
  return line;
}

}  // namespace

std::string to_string(const PruningPlan& plan) {
  std::size_t width = 0;
  for (const ChannelGroup& group : plan.groups)
    width = std::max(width, text_of(group.outputs).size() + 2);
  std::string text;
  for (const ChannelGroup& group : plan.groups) text += line_of(group, width) + "\n";
  return text + "parameters " + with_commas(plan.before.parameters) + " -> " +
         with_commas(plan.after.parameters) + ", MACs " + with_commas(plan.before.macs) + " -> " +
         with_commas(plan.after.macs) + "\n";
}

}  // namespace lockstep
