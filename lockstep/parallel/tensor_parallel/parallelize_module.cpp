// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/nn/exchange.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;

constexpr std::string_view call = "parallelize_module";

// Planned completely before any change.
class Cut {
 public:
  Cut(Module& module, const ParallelPlan& plan, int ranks) : ranks_(ranks) {
    std::vector<bool> used(plan.size(), false);
    const auto visit = [&](const std::string& name, Module& owner, const std::string& key,
                           const std::shared_ptr<Module>& layer) {
      const ParallelStyle* style = nullptr;
      for (std::size_t i = 0; i < plan.size(); ++i) {
        if (!matches(plan[i].first, name)) continue;
        used[i] = true;
        if (style != nullptr)
          refuse(name, "two patterns of the plan name it");
        else
          style = &plan[i].second;
      }
      if (style != nullptr) add(name, *style, owner, key, layer);
    };
    walk(module, "", visit);
    for (std::size_t i = 0; i < plan.size(); ++i)
      if (!used[i]) refuse("'" + plan[i].first + "'", "no layer has such a name");
  }

  const std::string& refusals() const { return refusals_; }

  void apply(const ProcessGroup& group, bool checks_inputs) {
    for (const nn::Exchange& exchange : exchanges_) exchange.apply();
    for (const Target& target : targets_)
      target.layer->parallelize({target.style, group, target.name, checks_inputs});
  }

 private:
  struct Target {
    std::string name;
    ParallelStyle style;
    ParallelLayer* layer;
  };

  template <class Visit>
  void walk(Module& owner, const std::string& prefix, const Visit& visit) {
    for (const auto& child : owner.named_children()) {
      visit(prefix + child.key(), owner, child.key(), child.value());
      walk(*child.value(), prefix + child.key() + '.', visit);
    }
  }

  void refuse(const std::string& name, const std::string& why) {
    refusals_ += "\n  " + name + ": " + why;
  }

  void add(const std::string& name, const ParallelStyle& style, Module& owner,
           const std::string& key, const std::shared_ptr<Module>& module) {
    auto* layer = dynamic_cast<ParallelLayer*>(module.get());
    if (layer == nullptr) {
      AnyModule ours = nn::exchanged(*module);
      if (ours.is_empty()) return refuse(name, module->name() + " is not a layer that can be cut");
      layer = dynamic_cast<ParallelLayer*>(ours.ptr().get());
      auto exchange = nn::Exchange::of(owner, key, std::move(ours));
      if (!exchange)
        return refuse(name, "it is a " + module->name() + ": declare it as lockstep::nn" +
                                short_name(module->name()));
      exchanges_.push_back(std::move(*exchange));
    }
    if (layer->cut()) return refuse(name, "it is cut already");
    if (!cut_.insert(module.get()).second) return refuse(name, "it has two names");
    const std::string mismatch = layer->mismatch(style, ranks_);
    if (!mismatch.empty()) return refuse(name, mismatch);
    if (const std::string use = use_of(*module); !use.empty()) return refuse(name, use);
    targets_.push_back({name, style, layer});
  }

  // The user that relies on the parameters' size, if any.
  static std::string use_of(const Module& layer) {
    for (const auto& item : layer.named_parameters(/*recurse=*/false)) {
      if (item.value().grad().defined()) return item.key() + " has a gradient already";
      if (torch::autograd::impl::try_get_grad_accumulator(item.value()) != nullptr)
        return item.key() +
               " is in use: cut it before DistributedDataParallel is made, and outside of a pass";
    }
    return "";
  }

  // "::Linear" of "torch::nn::LinearImpl".
  static std::string short_name(const std::string& name) {
    const std::string last = name.substr(name.rfind(':') - 1);
    return last.ends_with("Impl") ? last.substr(0, last.size() - 4) : last;
  }

  const int ranks_;
  std::vector<Target> targets_;
  std::vector<nn::Exchange> exchanges_;
  std::set<const Module*> cut_;
  std::string refusals_;
};

// Uncut layers get their neighbours, too.
void tell_places(const Module& module) {
  std::optional<PartialOutput> before;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* const layer = dynamic_cast<ParallelLayer*>(item.value().get());
    if (layer == nullptr) continue;
    layer->place(item.key(), before);
    if (auto partial = layer->partial_output()) before = std::move(partial);
  }
}

std::string text_of(Placement placement) {
  return placement.is_whole() ? "whole" : "dim " + std::to_string(*placement.dim);
}

std::string text_of(const ParallelStyle& style) {
  std::string text = name_of(style);
  if (const auto* const colwise = std::get_if<ColwiseParallel>(&style))
    text += " in " + std::to_string(colwise->segments) + (colwise->uneven ? " uneven" : "") +
            " segments of " + std::to_string(colwise->heads) + " heads, " +
            text_of(colwise->input) + " to " + text_of(colwise->output);
  if (const auto* const rowwise = std::get_if<RowwiseParallel>(&style))
    text += ", " + text_of(rowwise->input) + " to " + text_of(rowwise->output);
  if (const auto* const moved = std::get_if<Redistribution>(&style))
    text += ", " + text_of(moved->input) + " to " + text_of(moved->output);
  if (const auto* const sequence = std::get_if<SequenceParallel>(&style))
    text += ", dim " + std::to_string(sequence->dim);
  if (const auto* const experts = std::get_if<ExpertParallel>(&style); experts && experts->replicas)
    text += ", " + std::to_string(experts->replicas->size()) + " replicas";
  return text;
}

// Must be equal on all ranks.
Facts facts_of(const ParallelPlan& plan, const ParallelizeOptions& options) {
  Facts facts;
  for (std::size_t i = 0; i < plan.size(); ++i)
    facts.emplace_back("plan[" + std::to_string(i) + "]",
                       plan[i].first + ": " + text_of(plan[i].second));
  facts.emplace_back("across_hosts", options.across_hosts ? "true" : "false");
  facts.emplace_back("check_inputs", options.check_inputs ? "true" : "false");
  return facts;
}

void require_agreement(const Module& module, const ProcessGroup& group, const ParallelPlan& plan,
                       const ParallelizeOptions& options) {
  Facts digests;
  const Layouts layouts = layouts_of(module);
  for (const auto& [name, tensor] : named_tensors(module))
    if (!layouts.contains(name))
      digests.emplace_back(name, tensor.is_meta() ? "meta" : sha256(tensor));
  std::vector<std::string> lines = differing_values(gather(facts_of(plan, options), group, call));
  for (std::string& line : differing_tensors(gather(digests, group, call)))
    lines.push_back(std::move(line));
  if (lines.empty()) return;
  std::string text = "parallelize_module: the ranks differ, and nothing was changed:";
  for (const std::string& line : lines) text += "\n  " + line;
  throw Error(Fault::mismatch, text);
}

// Collective.
void require_replicas(const ProcessGroup& group, const ParallelPlan& plan) {
  for (const auto& [pattern, style] : plan) {
    const auto* const experts = std::get_if<ExpertParallel>(&style);
    if (experts == nullptr || !experts->replicas) continue;
    for (const int rank : all_gather_value(group.rank(), *experts->replicas, {.label = call}))
      require(rank == group.rank(), [&, &pattern = pattern] {
        return "parallelize_module: " + pattern + ": group " + experts->replicas->name() +
               " has ranks " + std::to_string(rank) + " and " + std::to_string(group.rank()) +
               " of group " + group.name() +
               ", which have different experts: replicas are along another axis of the mesh";
      });
  }
}

}  // namespace

void parallelize_module(Module& module, const ProcessGroup& group, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  require_agreement(module, group, plan, options);
  require_values(named_tensors(module), "parallelize_module");
  require(options.across_hosts || group.local_size() == group.size(), [&] {
    return "parallelize_module: the " + std::to_string(group.size()) + " ranks of group " +
           group.name() +
           " are on several hosts: every layer would communicate between them. Put " +
           "the axis last in the mesh, or allow it with across_hosts";
  });
  Cut cut(module, plan, group.size());
  require(cut.refusals().empty(), [&] {
    return "parallelize_module over " + std::to_string(group.size()) +
           " ranks: nothing was changed, because of" + cut.refusals();
  });
  require_replicas(group, plan);
  cut.apply(group, options.check_inputs);
  tell_places(module);
}

}  // namespace lockstep
