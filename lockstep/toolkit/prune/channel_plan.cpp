// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_plan.h"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/toolkit/prune/channel_choice.h"
#include "lockstep/toolkit/prune/channel_groups.h"
#include "lockstep/toolkit/prune/channel_importance.h"

namespace lockstep::prune {
namespace {

constexpr std::string_view made_by = "ChannelPruner";

// Collective.
void average(std::vector<Choice>& choices, const ProcessGroup& group) {
  for (Choice& choice : choices)
    if (!choice.importances.empty())
      all_reduce(at::from_blob(choice.importances.data(),
                               {static_cast<std::int64_t>(choice.importances.size())}, at::kDouble),
                 group, ReduceOp::average, {.label = made_by});
}

ModelSize size_of(const ChannelTrace& trace, const std::vector<ChannelCut>& cuts,
                  std::int64_t samples) {
  std::map<std::string, std::vector<std::int64_t>> sizes;
  for (const auto& held : trace.tensors) sizes.emplace(held.name, held.shape.sizes);
  for (const ChannelCut& cut : cuts)
    sizes.at(cut.tensor)[static_cast<std::size_t>(cut.dim)] =
        static_cast<std::int64_t>(cut.kept.size());
  const auto elements = [&](const LabelledTensor& held) {
    const auto& own = sizes.at(held.name);
    return std::accumulate(own.begin(), own.end(), std::int64_t{1}, std::multiplies<>());
  };
  ModelSize size;
  for (const auto& held : trace.tensors)
    if (held.is_parameter) size.parameters += elements(held);
  for (const auto& [weight, places] : trace.products)
    size.macs += places * elements(trace.tensors[weight]) / samples;
  return size;
}

// Collective.
void require_equal(const std::vector<Choice>& choices, const ChannelPrunerOptions& options,
                   const ProcessGroup& group) {
  Facts facts{{"sparsity", std::to_string(options.sparsity)},
              {"importance", std::to_string(static_cast<int>(options.importance))},
              {"round_to", std::to_string(options.round_to)},
              {"global", options.global ? "true" : "false"}};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    std::string text = std::to_string(choice.group->channels.size());
    text += choice.importances.empty() ? " channels, whole" : " channels";
    if (choice.sparsity) text += ", sparsity " + std::to_string(*choice.sparsity);
    std::string name = "group " + choice.group->layers.front();
    if (i > 0 && choices[i - 1].group->layers == choice.group->layers) name += " again";
    facts.emplace_back(std::move(name), std::move(text));
  }
  const auto lines = differing_values(gather(facts, group, made_by));
  if (lines.empty()) return;
  std::string text = "ChannelPruner: the ranks differ:";
  for (const std::string& line : lines) text += "\n  " + line;
  throw Error(Fault::mismatch, text);
}

Choice choice_of(const TracedGroup& group, const ChannelTrace& trace, Importance importance,
                 std::optional<double> sparsity, std::string& whole_because) {
  Choice choice{.group = &group, .sparsity = sparsity};
  if (whole_because.empty() && sparsity == 0.0) whole_because = "excluded";
  if (!whole_because.empty()) return choice;
  if (auto importances = importances_of(group, trace, importance))
    choice.importances = std::move(*importances);
  else
    whole_because = "no BatchNorm";
  return choice;
}

}  // namespace

PlannedCuts plan_cuts(const TracedModel& model, const OwnSparsity& own_sparsity,
                      const ChannelPrunerOptions& options, const ProcessGroup& group) {
  const std::vector<TracedGroup> groups = groups_of(model.trace);
  PlannedCuts planned;
  std::vector<Choice> choices;
  for (const TracedGroup& traced : groups) {
    planned.plan.groups.push_back(traced.described);
    choices.push_back(choice_of(traced, model.trace, options.importance,
                                own_sparsity(traced.layers),
                                planned.plan.groups.back().whole_because));
  }
  if (group.size() > 1) {
    require_equal(choices, options, group);
    average(choices, group);
  }
  choose_channels(choices, options);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    ChannelGroup& described = planned.plan.groups[i];
    described.kept = described.channels - static_cast<std::int64_t>(choices[i].removed.size());
    planned.by_group.push_back(cuts_of({&choices[i], 1}, model.trace));
  }
  planned.plan.cuts = cuts_of(choices, model.trace);
  planned.plan.before = size_of(model.trace, {}, model.samples);
  planned.plan.after = size_of(model.trace, planned.plan.cuts, model.samples);
  return planned;
}

}  // namespace lockstep::prune
