// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/reducer.h"

#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/large_gradient.h"
#include "lockstep/parallel/gradients/overlap.h"
#include "lockstep/parallel/gradients/trained_parameters.h"

namespace lockstep {
namespace {

NamedTensors only_trained(NamedTensors all) {
  NamedTensors parameters = trained_parameters(std::move(all));
  require(!parameters.empty(), "the module has no parameter that requires a gradient");
  for (const auto& [name, parameter] : parameters) require_reducible_gradient(name, parameter);
  return parameters;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& entry : named) tensors.push_back(entry.second);
  return tensors;
}

BucketLimits limits_of(const DistributedDataParallelOptions& options) {
  const bool whole_at_first = options.static_graph || !options.find_unused_parameters;
  return bucket_limits(options.bucket_cap_mb, options.bucket_caps_mb, whole_at_first);
}

std::shared_ptr<GradientPool> pool_for(const NamedTensors& parameters, const ProcessGroup& group) {
  std::vector<std::size_t> large;
  for (const auto& [name, parameter] : parameters)
    if (is_large_gradient(parameter.nbytes())) large.push_back(parameter.nbytes());
  return large.empty() ? nullptr : GradientPool::make(large, group);
}

// Otherwise SharedOptimizer does it, or train_pieces().
bool averages_in_backward(const DistributedDataParallelOptions& options) {
  return !options.share_parameters && options.deterministic == 0;
}

ProcessGroup group_of_its_own(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

}  // namespace

Reducer::Reducer(NamedTensors parameters, const ProcessGroup& group,
                 const DistributedDataParallelOptions& options)
    : options_(options),
      parameters_(only_trained(std::move(parameters))),
      device_(parameters_.front().second.device()),
      limits_(limits_of(options)),
      overlapped_(averages_in_backward(options) && agree_on_overlap(options, group, device_)),
      group_(overlapped_ ? group_of_its_own(group) : group),
      given_(group),
      reduction_(device_),
      touched_(parameters_.size(), false),
      recording_(options.static_graph),
      expected_(parameters_.size(), options.static_graph ? 0 : 1),
      rebuilt_(options.share_parameters ||
               (options.find_unused_parameters && !options.static_graph)) {
  auto assignment = compute_bucket_assignment_by_size(tensors_of(parameters_), limits_.first);
  std::reverse(assignment.begin(), assignment.end());  // Gradients tend to come from the last on.
  make_buckets(std::move(assignment));
  if (options.share_parameters && options.deterministic == 0 && group.size() > 1)
    pool_ = pool_for(parameters_, group);
  for (std::size_t i = 0; i < parameters_.size(); ++i) hooks_.push_back(hook_on(i));
  require_allowed();
}

// Gives a group of our own up where a collective would otherwise keep the thread, and the other
// ranks' threads.
Reducer::~Reducer() {
  hooks_.clear();
  if (!reduction_.busy()) return;
  try {
    if (owned_)
      owned_->abort();
    else
      group_.abort("DistributedDataParallel was destroyed during backward()");
  } catch (const Error&) {
    // It has been given up already, which ends the collective as well.
  }
}

std::unique_ptr<GradientHook> Reducer::hook_on(std::size_t index) {
  return std::make_unique<GradientHook>(parameters_[index].second, *this, index);
}

// torch::load() gives a parameter another accumulator. One that is frozen has none.
void Reducer::renew_hooks() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const auto current = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    if (current != nullptr && current.get() != hooks_[i]->accumulator()) hooks_[i] = hook_on(i);
  }
}

bool Reducer::allows_others() const {
  return averages_in_backward(options_) && options_.mean == GradientMean::over_ranks && !owned_ &&
         join_ == nullptr;
}

bool Reducer::has_others() const {
  return std::any_of(hooks_.begin(), hooks_.end(),
                     [](const auto& hook) { return hook->has_others(); });
}

void Reducer::require_allowed() const {
  std::string names;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const GradientHook& hook = *hooks_[i];
    if (!hook.has_others() || (allows_others() && hook.is_allowed())) continue;
    names += (names.empty() ? "" : ", ") + parameters_[i].first;
  }
  if (!names.empty())
    throw Error(Fault::unsupported,
                "another DistributedDataParallel has these parameters too: " + names +
                    ". Two average their gradients together only without share_parameters, "
                    "deterministic, GradientMean::over_samples, shard_gradients() and join(): make "
                    "one DistributedDataParallel of a module that holds both modules");
}

void Reducer::set_hook(CommunicationHook hook) {
  require(static_cast<bool>(hook), "register_comm_hook: there is no hook");
  require(!reduction_.has_hook(), "register_comm_hook: there is one already");
  if (!averages_in_backward(options_) || owned_)
    throw Error(
        Fault::unsupported,
        "register_comm_hook: gradients that are shared, sharded or of pieces lie in no bucket");
  require(!has_passed_, "register_comm_hook: a backward pass has been averaged already");
  // What it throws ends the group in which it communicates; the caller's is not for that.
  if (!overlapped_) group_ = group_of_its_own(group_);
  reduction_.set_hook(std::move(hook));
  make_buckets(assignment_);  // Laid out for it.
}

void Reducer::set_owners(std::vector<int> owners) {
  require(!owned_, "shard_gradients: they are sharded already");
  require(!has_passed_, "shard_gradients: a backward pass has been averaged already");
  if (reduction_.has_hook())
    throw Error(Fault::unsupported, "shard_gradients: a communication hook takes whole buckets");
  if (!averages_in_backward(options_))
    throw Error(
        Fault::unsupported,
        "shard_gradients: not together with share_parameters or deterministic, whose gradients "
        "are not averaged in backward()");
  if (is_on_device())
    throw Error(Fault::unsupported, "shard_gradients: only in CPU memory, and parameter " +
                                        parameters_.front().first + " is on " + device_.str());
  if (has_others())
    throw Error(Fault::unsupported,
                "shard_gradients: another DistributedDataParallel has some of the parameters too");
  if (group_.size() == 1) return;  // This rank owns all.
  buckets_.reset();
  owned_ =
      std::make_unique<OwnedGradients>(parameters_, std::move(owners), group_of_its_own(group_));
  owned_->assign(assignment_);
}

void Reducer::set_join(Join* join) {
  if (join != nullptr && owned_)
    throw Error(
        Fault::unsupported,
        "join(): with shard_gradients() a rank that is done would have to go on stepping the "
        "parameters that it owns");
  if (join != nullptr && has_others())
    throw Error(
        Fault::unsupported,
        "join(): another DistributedDataParallel has some of the parameters too, and a rank "
        "that is done cannot tell which of the two averages them");
  join_ = join;
}

void Reducer::make_buckets(BucketAssignment assignment) {
  reduction_.drain();
  if (owned_) owned_->assign(assignment);
  const bool has_something_to_sum = group_.size() > 1 || reduction_.has_hook();
  if (!averages_in_backward(options_) || owned_ || !has_something_to_sum) {
    assignment_ = std::move(assignment);
    return;
  }
  auto made =
      std::make_unique<GradientBuckets>(parameters_, assignment, group_, reduction_.has_hook());
  assignment_ = std::move(assignment);
  buckets_ = std::move(made);
}

void Reducer::rebuild_buckets() {
  rebuild_due_ = false;
  rebuilt_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i)  // Of a static graph, those without any.
    if (std::find(arrival_.begin(), arrival_.end(), i) == arrival_.end()) arrival_.push_back(i);
  group_.broadcast({.data = arrival_.data(), .count = arrival_.size(), .dtype = DType::int64}, 0,
                   {.label = "order of gradients"});
  std::vector<at::Tensor> in_order;
  for (const std::size_t i : arrival_) in_order.push_back(parameters_[i].second);
  auto assignment = compute_bucket_assignment_by_size(in_order, limits_.rebuilt, arrival_);
  arrival_.clear();
  if (assignment != assignment_) make_buckets(std::move(assignment));
}

void Reducer::prepare(bool synchronize) {
  forget_pass_cut_short();
  renew_hooks();
  if (rebuild_due_ && join_ == nullptr) rebuild_buckets();
  synchronize_ = synchronize;
  if (synchronize)
    for (const auto& hook : hooks_) hook->take_charge();
}

void Reducer::count_samples(double samples) {
  forget_pass_cut_short();
  samples_ += samples;
}

BackwardTimes Reducer::times() const {
  return {.copy = copy_time_, .wait = wait_time_, .reduce = reduction_.time()};
}

}  // namespace lockstep
