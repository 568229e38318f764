// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/local_steps/local_steps.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/tensor_lists.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

void require_own_parameters(const NamedTensors& parameters, const std::string& call) {
  require(!parameters.empty(),
          [&] { return call + ": the module has no parameter that requires a gradient"; });
  require_values(parameters, call);
  for (const auto& [name, parameter] : parameters) {
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return call + ": all ranks of a host share parameter " + name + ", so none can step it alone";
    });
    if (!part_text(parameter).empty())
      throw Error(Fault::unsupported, call + ": parameter " + name + " is cut over ranks");
  }
}

const torch::optim::Optimizer& require_whole(const torch::optim::Optimizer& optimizer,
                                             const std::string& call) {
  if (dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr)
    throw Error(Fault::unsupported, call + ": the optimizer is sharded over ranks");
  return optimizer;
}

constexpr const char* module_prefix = "module.";
constexpr const char* optimizer_prefix = "optimizer.";

std::string rank_prefix(std::int64_t rank) {
  std::string prefix = "rank.";
  return prefix.append(std::to_string(rank)).append(".");
}

void add(StateDict& state, const std::string& prefix, StateDict part) {
  for (auto& [name, tensor] : part.tensors) state.tensors.emplace(prefix + name, std::move(tensor));
  for (auto& [name, value] : part.values) state.values.emplace(prefix + name, std::move(value));
}

StateDict part_of(const StateDict& state, const std::string& prefix) {
  StateDict part;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) part.tensors.emplace(name.substr(prefix.size()), tensor);
  for (const auto& [name, value] : state.values)
    if (name.starts_with(prefix)) part.values.emplace(name.substr(prefix.size()), value);
  return part;
}

void add(StateRequest& request, const std::string& prefix, StateRequest part) {
  for (auto& [name, range] : part) request.emplace(prefix + name, std::move(range));
}

struct Prefixes {
  std::string module;
  std::string optimizer;
};

// Ranks that step together need equal values: with other hosts, one saved rank's.
Prefixes prefixes_in(const StateDict& saved, const std::string& hosts, int rank) {
  const bool has_own = value_of<std::string>(saved, "hosts") == hosts;
  const std::string own = rank_prefix(has_own ? rank : 0);
  const bool in_sync = value_of<bool>(saved, "in_sync");
  return {.module = (in_sync ? "" : own) + module_prefix, .optimizer = own + optimizer_prefix};
}

constexpr const char* host_label = "ranks of a host";

// Such as "0 0 2 2": by rank, the first rank on its host.
std::string hosts_of(const ProcessGroup& group) {
  std::string text;
  for (const int first : sharing_ranks(group, host_label))
    text.append(text.empty() ? "" : " ").append(std::to_string(first));
  return text;
}

}  // namespace

ProcessGroup host_group(const ProcessGroup& group) {
  const std::vector<int> first = sharing_ranks(group, host_label);
  return group.split(first[static_cast<std::size_t>(group.rank())], 0, {.label = host_label});
}

LocalSteps::LocalSteps(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                       const ProcessGroup& group, std::string name, const std::string& options)
    : module_(module),
      group_(group),
      name_(std::move(name)),
      parameters_(trained_parameters(named_parameters(module))),
      module_state_(state_of(module)),
      optimizer_state_(state_of(optimizer, named_parameters(module))),
      equal_{.begin = 0, .end = parameters_.size()} {
  require_own_parameters(parameters_, name_);
  require_whole(optimizer, name_);
  parallel::require_same_lines(options, "the options of " + name_, group_);
  hosts_ = hosts_of(group_);
  const NamedTensors tensors = named_tensors(module);
  parallel::require_same_tensors(tensors, group_);
  const at::NoGradGuard no_grad;
  parallel::broadcast_replica(tensors, group_);
}

LocalSteps::~LocalSteps() = default;

bool LocalSteps::step() {
  std::string label = name_;
  label.append(", step ").append(std::to_string(steps_ + 1));
  const Range due = due_after(steps_);
  if (!due.is_empty()) synchronize({due}, label);
  ++steps_;
  equal_ = due;
  return !due.is_empty();
}

void LocalSteps::synchronize() {
  if (in_sync()) return;
  std::string label = name_;
  label.append(", synchronize() after step ").append(std::to_string(steps_));
  synchronize({{.begin = 0, .end = equal_.begin}, {.begin = equal_.end, .end = parameters_.size()}},
              label);
  equal_ = {.begin = 0, .end = parameters_.size()};
}

// Collectives precede writes: an Error changes nothing.
void LocalSteps::synchronize(const std::vector<Range>& ranges, const std::string& label) {
  const at::NoGradGuard no_grad;
  require_all_known();
  std::vector<at::Tensor> means;
  for (const Range& range : ranges)
    for (std::size_t i = range.begin; i < range.end; ++i) means.push_back(contribution(i));
  all_reduce_coalesced(means, group_, ReduceOp::average, {.label = label});
  const bool is_last = ranges.back().end == parameters_.size();
  const NamedTensors buffers = is_last ? named_buffers(module_) : NamedTensors{};
  NamedTensors received;
  for (const auto& [name, buffer] : buffers) received.emplace_back(name, buffer.detach().clone());
  parallel::broadcast_replica(received, group_);

  auto mean = means.cbegin();
  for (const Range& range : ranges)
    for (std::size_t i = range.begin; i < range.end; ++i) take_mean(i, *mean++);
  for (std::size_t i = 0; i < buffers.size(); ++i)
    buffers[i].second.detach().copy_(received[i].second);
}

void LocalSteps::require_all_known() const {
  for (const auto& [name, parameter] : trained_parameters(named_parameters(module_)))
    require(std::any_of(parameters_.begin(), parameters_.end(),
                        [&, &tensor = parameter](const auto& known) {
                          return known.second.is_same(tensor);
                        }),
            [&, &name = name] {
              return name_ + ": parameter " + name +
                     " was replaced or unfrozen after the construction, so it would be "
                     "synchronised never";
            });
}

StateDict LocalSteps::state_dict() {
  StateDict state;
  state.values = {{"steps", steps_},
                  {"hosts", hosts_},
                  {"in_sync", in_sync()},
                  {"equal_begin", static_cast<std::int64_t>(equal_.begin)},
                  {"equal_end", static_cast<std::int64_t>(equal_.end)}};
  const std::string own = rank_prefix(group_.rank());
  StateDict module = module_state_->state_dict();
  if (!in_sync())
    for (auto& [name, tensor] : module.tensors) tensor.of_rank_0 = false;  // Each saves its own.
  add(state, (in_sync() ? "" : own) + module_prefix, std::move(module));
  add(state, own + optimizer_prefix, optimizer_state_->state_dict());
  return state;
}

StateRequest LocalSteps::wanted(const StateDict& saved) {
  const auto& saved_hosts = value_of<std::string>(saved, "hosts");
  require(value_of<bool>(saved, "in_sync") || saved_hosts == hosts_, [&] {
    return name_ +
           ": the state was saved between two synchronisations, when ranks differed, with "
           "hosts " +
           saved_hosts + ", not " + hosts_ +
           " (the first rank on the host of each rank). Continue it there, or from a state that "
           "was saved after synchronize()";
  });
  equal_in(saved);
  const Prefixes prefixes = prefixes_in(saved, hosts_, group_.rank());
  StateRequest request;
  add(request, prefixes.module, module_state_->wanted(part_of(saved, prefixes.module)));
  add(request, prefixes.optimizer, optimizer_state_->wanted(part_of(saved, prefixes.optimizer)));
  return request;
}

LocalSteps::Range LocalSteps::equal_in(const StateDict& saved) const {
  if (value_of<bool>(saved, "in_sync")) return {.begin = 0, .end = parameters_.size()};
  const Range range{.begin = static_cast<std::size_t>(value_of<std::int64_t>(saved, "equal_begin")),
                    .end = static_cast<std::size_t>(value_of<std::int64_t>(saved, "equal_end"))};
  require(range.begin <= range.end && range.end <= parameters_.size(), [&] {
    return name_ + ": the state was saved with more trained parameters than the module has";
  });
  return range;
}

void LocalSteps::load_state_dict(StateDict state) {
  const Prefixes prefixes = prefixes_in(state, hosts_, group_.rank());
  module_state_->load_state_dict(part_of(state, prefixes.module));
  optimizer_state_->load_state_dict(part_of(state, prefixes.optimizer));
  steps_ = value_of<std::int64_t>(state, "steps");
  equal_ = equal_in(state);
}

}  // namespace lockstep
