// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/parallel/gradients/operator_profile.h"
#include "lockstep/parallel/gradients/stopwatch.h"

namespace lockstep::parallel {
namespace {

bool has_lost_a_peer(const std::exception_ptr& error) {
  return error && fault_in(error) == Fault::peer_lost;
}

// A barrier at a pass's end: see Reducer::Groups. A mismatch's text contains
// BackwardPass::change.
void meet(const Reducer::Groups& groups, const std::string& change) {
  if (groups.own.size() == 1) return;
  if (change.empty() && groups.own.name() == groups.given.name()) return;  // The reports do that.
  const std::string label =
      change.empty() ? "end of a backward pass" : "backward pass of a changed module: " + change;
  try {
    groups.given.barrier({.label = label});
  } catch (const Error& error) {
    if (error.fault() == Fault::mismatch) groups.own.abort(error.what());  // Its thread waits too.
    throw;
  }
}

// Sinks compute means over ranks; the factor is for other means. `join` may be null.
double factor_of(const PassReports& reports, GradientMean mean, int ranks, const Join* join) {
  if (mean == GradientMean::over_samples) return ranks / reports.samples();
  if (join != nullptr && !join->options().divide_by_initial_world_size)
    return static_cast<double>(ranks) / join->active_ranks();
  return 1;
}

}  // namespace

Reducer::Reducer(NamedTensors parameters, std::unique_ptr<GradientSink> sink, Groups groups,
                 const DistributedDataParallelOptions& options, const Features& features)
    : options_(options),
      features_(features),
      parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      agreement_(options),
      intake_(parameters_, hooks_, std::move(sink), options),
      window_{.touched = std::vector<bool>(parameters_.size()), .change = {}},
      hooks_(parameters_, *this) {
  if (intake_.device().is_cpu() && !options.share_parameters &&
      !features.has(Feature::deterministic))
    agreement_.compare_writes(parameters_);
  const std::string refused = hooks_.refused();
  if (!refused.empty()) Features::refuse_common_parameters(refused);
}

void Reducer::set_sink(std::unique_ptr<GradientSink> sink, const ProcessGroup& group) {
  intake_.set_sink(std::move(sink));
  groups_.own = group;
}

void Reducer::set_join(Join* join) {
  join_ = join;
  agreement_.ignore_writes(join != nullptr);  // Joined ranks write nothing.
}

void Reducer::prepare(bool synchronize, std::string change) {
  profile_operators(groups_.given);
  forget_pass_cut_short();
  hooks_.renew();
  if (join_ == nullptr) intake_.rebuild_buckets(groups_.own);
  window_.synchronize = synchronize;
  window_.change = std::move(change);
  if (!window_.change.empty() && !options_.share_parameters)
    hooks_.renew_accumulators();  // Otherwise autograd refuses new shapes before ranks report.
  if (synchronize) hooks_.take_charge();
}

void Reducer::count_samples(double samples) {
  forget_pass_cut_short();
  window_.samples += samples;
}

void Reducer::forget_window() {
  forget_pass_cut_short();
  window_.samples = 0;
  window_.touched.assign(parameters_.size(), false);
  if (const auto noise = agreement_.noise()) noise->forget();
}

BackwardTimes Reducer::times() const {
  BackwardTimes times = intake_.times();
  times.wait += report_time_;
  return times;
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.requires_grad()) return;
  clock_.set_loop();
  output.register_hook([this, alive = std::weak_ptr<const bool>(alive_),
                        synchronize = window_.synchronize,
                        device = output.device()](const at::Tensor&) {
    if (alive.expired()) return;
    // A changed module may lack parameters with hooks.
    const bool is_pass =
        hooks_.are_reached() || (!window_.change.empty() && accumulates_gradients());
    if (synchronize && window_.synchronize && is_pass) begin_pass(device, /*watched=*/true);
    if (const auto noise = agreement_.noise(); noise && hooks_.are_reached())
      noise->note_output(torch::autograd::get_current_graph_task_id());
    clock_.begin();  // Must end after begin_pass().
  });
}

void Reducer::begin_pass(c10::Device device, bool watched) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_.covers(task, watched)) return;
  pass_.end();
  forget_pass_cut_short();
  // With join(), ranks reduce after the reports.
  intake_.begin_pass(/*early=*/join_ == nullptr, /*is_shadow=*/!window_.change.empty());
  std::function<void(const BackwardPass&)> at_end;
  if (intake_.device().is_cpu() && device.is_cpu())
    at_end = [this, alive = std::weak_ptr<const bool>(alive_)](const BackwardPass& ended) {
      if (!alive.expired()) end_pass(ended);
    };
  else
    unreported_.emplace(GraphTaskResult::of_this_thread());
  auto pass = std::make_shared<BackwardPass>(sink().pool(), std::move(at_end));
  if (!hooks_.are_reached()) pass->change = window_.change;
  pass_.begin(pass, task, watched);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this, alive = std::weak_ptr<const bool>(alive_), pass = std::move(pass)] {
        if (!alive.expired()) finish_pass(*pass);  // A hook may have destroyed the reducer.
      });
}

// On a device, autograd's thread ends a pass while the caller's continues or destroys this
// object. The next call therefore drops an interrupted pass.
void Reducer::forget_pass_cut_short() {
  if (!unreported_ || !unreported_->exception()) return;
  unreported_.reset();
  forget_window();
  agreement_.count_lost_pass();
}

// On backward()'s thread, or the device's autograd thread.
void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  const bool is_ours = hooks_.is_in_charge(index);
  const bool is_averaged = window_.synchronize && is_ours;
  // First: it may drop an earlier pass.
  if (is_averaged) begin_pass(parameters_[index].second.device(), /*watched=*/false);
  if (is_averaged && !window_.change.empty()) return;
  if (const auto noise = agreement_.noise(); noise && is_ours) {
    if (!noise->has_gradients() && std::ranges::count(window_.touched, true) > 0)
      noise->omit_pass();  // Started measuring after these gradients.
    if (!window_.touched[index]) noise->compare(incoming, parameters_[index].second.grad());
    noise->note(incoming, torch::autograd::get_current_graph_task_id());
  }
  window_.touched[index] = is_ours || !window_.synchronize;
  if (is_averaged) intake_.add(index, incoming);
}

void Reducer::finish_pass(BackwardPass& pass) {
  const at::NoGradGuard no_grad;
  pass.has_announced = true;
  announce(pass.change);
  intake_.complete();
  pass.has_reported = true;
  unreported_.reset();
  const PassReports reports = exchange_reports();
  if (!may_finish(reports)) return;
  intake_.finish(reports, factor_of(reports, options_.mean, groups_.own.size(), join_));
  if (const auto noise = agreement_.noise())
    noise->finish(reports, parameters_, groups_.own.size());
  count_step(groups_.own, clock_.loop());
}

// Announces an averaged pass to joined ranks. Without join(), ranks compare calls: different ones
// would wait in different groups.
void Reducer::announce(const std::string& change) {
  if (join_ == nullptr) {
    const Stopwatch watch(report_time_);
    if (!intake_.traits().waits_in_pass) meet(groups_, change);
    return;
  }
  try {
    join_->exchange(Join::Step::average_gradients);
  } catch (const Error& error) {
    throw AgreedError(error);
  }
}

// LibTorch has ended the pass; without a report, by an exception.
void Reducer::end_pass(const BackwardPass& pass) {
  longest_pass_ = std::max(longest_pass_, pass.elapsed());
  if (pass.has_reported) return;
  const auto take_part = [this, &pass](std::string_view text) {
    if (is_agreed(pass.exception())) {  // Another reducer has informed all ranks.
      intake_.complete();
      return true;
    }
    if (!has_lost_a_peer(pass.exception()) && sink().cut_short(text)) return false;
    if (!pass.has_announced) announce(pass.change);
    intake_.complete();
    exchange_reports(text);
    return true;
  };
  end_with_the_others(pass.exception(), groups_.own, groups_.given, longest_pass_, take_part);
  intake_.drop();
  forget_window();
}

void Reducer::shadow_pass() {
  require(!intake_.plan().is_recording_counts(),
          "join(): with static_graph, every rank needs inputs for the first pass");
  forget_pass_cut_short();
  pass_.end();
  intake_.begin_pass(/*early=*/false, /*is_shadow=*/true);
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  intake_.complete();
  const std::vector<ParameterUse> uses(parameters_.size(), ParameterUse::unused);
  const PassReports reports = agreement_.exchange(intake_.report(), uses, groups_.own);
  if (!may_finish(reports)) return;
  intake_.finish(reports, /*factor=*/1);
  intake_.drop();
}

PassReports Reducer::exchange_reports(std::string_view exception) {
  const Stopwatch watch(report_time_);
  std::vector<ParameterUse> uses(parameters_.size());
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = use_of(i);
  if (belongs_to_another_pass())
    std::replace(uses.begin(), uses.end(), ParameterUse::missing, ParameterUse::elsewhere);
  PassReport report = intake_.report();
  report.samples = window_.samples;
  if (exception.empty() && !window_.change.empty()) {
    report.changed = 1;
    exception = window_.change;
  }
  if (const auto noise = agreement_.noise()) {
    report.squares = noise->squares();
    report.passes = noise->passes();
  }
  forget_window();
  pass_.end();
  return agreement_.exchange(report, uses, groups_.own, exception);
}

ParameterUse Reducer::use_of(std::size_t index) const {
  if (!hooks_.is_in_charge(index)) return ParameterUse::elsewhere;
  const BucketPlan& plan = intake_.plan();
  if (plan.has_counts()) {
    if (plan.misses(index)) return ParameterUse::missing;
    return plan.expects(index) ? ParameterUse::used : ParameterUse::unused;
  }
  if (window_.touched[index]) return ParameterUse::used;
  if (!parameters_[index].second.requires_grad()) return ParameterUse::unused;  // Frozen since.
  return options_.find_unused_parameters || plan.is_recording_counts() ? ParameterUse::unused
                                                                       : ParameterUse::missing;
}

// Gradients arrived only for shared parameters.
bool Reducer::belongs_to_another_pass() const {
  bool has_common = false;
  bool has_own = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (hooks_.has_others(i)) {
      has_common = true;
    } else if (window_.touched[i]) {
      return false;
    } else if (parameters_[i].second.requires_grad()) {
      has_own = true;
    }
  }
  return has_common && has_own;
}

bool Reducer::may_finish(const PassReports& reports) {
  try {
    if (agreement_.accepts(reports, parameters_, groups_.own)) return true;
  } catch (...) {
    intake_.drop();
    throw;
  }
  intake_.drop();
  return false;
}

}  // namespace lockstep::parallel
