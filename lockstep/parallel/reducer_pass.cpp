// How Reducer follows a backward pass, from the first gradient to the decision of all ranks.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/comm/steps.h"
#include "lockstep/parallel/dropped_pass.h"
#include "lockstep/parallel/reducer.h"
#include "lockstep/parallel/stopwatch.h"

namespace lockstep {
namespace {

// One that is refused goes at once: the rest of the pass could not read it.
void require_takeable(const std::string& name, at::Tensor& gradient, c10::Device device) {
  std::string problem;
  if (gradient.layout() != at::kStrided)
    problem = "the gradient of parameter " + name + " is sparse";
  else if (gradient.device() != device)
    problem = "parameter " + name + " was moved to " + gradient.device().str() +
              " after DistributedDataParallel was made";
  if (problem.empty()) return;
  gradient.reset();
  throw Error(Fault::unsupported, problem);
}

}  // namespace

void Reducer::watch(const at::Tensor& output) {
  if (!synchronize_ || !output.requires_grad()) return;
  output.register_hook([this, alive = std::weak_ptr<const bool>(alive_)](const at::Tensor&) {
    if (!alive.expired() && synchronize_ && hooks_.are_reached()) begin_pass(/*watched=*/true);
  });
}

// --- As gradients come --------------------------------------------------------------------------

void Reducer::begin_pass(bool watched) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_.covers(task, watched)) return;
  reset_pass();
  order_.begin_pass();
  auto pass = std::make_shared<BackwardPass>(
      sink_->pool(), [this, alive = std::weak_ptr<const bool>(alive_)](const BackwardPass& ended) {
        if (!alive.expired()) end_pass(ended);
      });
  pass_.begin(pass, task, watched);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this, pass = std::move(pass)] { finish_pass(*pass); });
}

void Reducer::reset_pass() {
  // Ranks that have joined, or that learn a static graph, reduce after the reports.
  sink_->begin(/*early=*/join_ == nullptr && !counts_.is_recording());
  pass_.end();
  counts_.begin_pass();
  report_ = {};
  progress_.begin_pass(parameters_.size(), assignment().size());
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (counts_.expects(i) && hooks_.is_in_charge(i)) progress_.expect(order_.bucket_of(i));
}

// Runs on the thread that called backward(), or on autograd's own of the device.
void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  const bool is_ours = hooks_.is_in_charge(index);  // Otherwise another reducer averages it.
  touched_[index] = is_ours || !synchronize_;
  if (!synchronize_ || !is_ours) return;
  begin_pass(/*watched=*/false);
  const GradientCounts::Arrival arrival = counts_.note(index);
  if (arrival == GradientCounts::Arrival::repeated)
    report_.repeated = static_cast<std::int64_t>(index);
  if (arrival != GradientCounts::Arrival::complete) return;
  take(index, incoming);
  order_.note(index);
  while (progress_.is_next_complete()) finish_bucket();
}

void Reducer::take(std::size_t index, const at::Tensor& incoming) {
  const Stopwatch watch(copy_time_);
  const at::NoGradGuard no_grad;
  const auto& [name, parameter] = parameters_[index];
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) require_takeable(name, gradient, device_);
  note(index, sink_->take(index, gradient, incoming));
  progress_.note_taken(index, order_.bucket_of(index));
}

void Reducer::note(std::size_t index, Taken taken) {
  const auto number = static_cast<std::int64_t>(index);
  if (taken == Taken::old_mean) report_.kept_mean = number;
  if (taken == Taken::non_finite && report_.non_finite == PassReport::none)
    report_.non_finite = number;
}

// The next bucket is complete, or will not become more so: a gradient that has not come in this pass
// is what had accumulated before, or zero, and stays so unless another rank turns out to have one.
void Reducer::finish_bucket() {
  const Stopwatch watch(copy_time_);
  const at::NoGradGuard no_grad;
  for (const std::size_t i : assignment()[progress_.next()]) {
    if (progress_.is_taken(i)) continue;
    at::Tensor none;  // While another reducer averages it, it is not ours to read.
    at::Tensor& gradient = hooks_.is_in_charge(i) ? parameters_[i].second.mutable_grad() : none;
    note(i, sink_->take_left_out(i, gradient));
  }
  sink_->start(progress_.next());
  progress_.advance();
}

// --- At its end ---------------------------------------------------------------------------------

void Reducer::finish_pass(BackwardPass& pass) {
  const at::NoGradGuard no_grad;
  pass.has_announced = true;
  announce();
  finish_buckets();
  pass.has_reported = true;
  const PassReports reports = exchange_reports();
  if (!may_finish(reports)) return;
  finish_sink(reports, factor_of(reports));
  count_step(groups_.own);
}

// Ranks without input left learn that a pass is about to be averaged.
void Reducer::announce() {
  if (join_ != nullptr) join_->exchange(Join::Step::average_gradients);
}

// Those that the gradients have not completed; then waits for all.
void Reducer::finish_buckets() {
  while (progress_.has_next()) finish_bucket();
  const Stopwatch watch(wait_time_);
  if (const auto index = sink_->wait()) note(*index, Taken::non_finite);
}

void Reducer::finish_sink(const PassReports& reports, double factor) {
  sink_->finish(reports, factor);
  has_passed_ = true;
  if (!counts_.is_recording()) order_.end_pass();
  counts_.end_pass();
}

// LibTorch has ended the pass. One that has not reported was cut short by an exception.
void Reducer::end_pass(const BackwardPass& pass) {
  longest_pass_ = std::max(longest_pass_, pass.elapsed());
  if (pass.has_reported) return;
  if (!device_.is_cpu()) {  // This is autograd's thread; the caller may be in a collective.
    forget_window();
    agreement_.count_lost_pass();
    return;
  }
  const auto take_part = [this, &pass](std::string_view text) {
    if (is_agreed(pass.exception()))
      return finish_buckets();  // All ranks know, by another reducer.
    if (!pass.has_announced) announce();
    finish_buckets();
    exchange_reports(text);
  };
  end_with_the_others(pass.exception(), groups_.own, groups_.given, longest_pass_, take_part);
  drop_gradients();
  forget_window();
}

void Reducer::shadow_pass() {
  require(!counts_.is_recording(),
          "join(): a rank without any input cannot tell what a static graph looks like");
  reset_pass();
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  finish_buckets();  // With zeros.
  const std::vector<ParameterUse> uses(parameters_.size(), ParameterUse::unused);
  const PassReports reports = agreement_.exchange(report_, uses, groups_.own);
  if (!may_finish(reports)) return;
  finish_sink(reports, /*factor=*/1);
  drop_gradients();
}

// --- What ranks tell each other -----------------------------------------------------------------

PassReports Reducer::exchange_reports(std::string_view exception) {
  const Stopwatch watch(wait_time_);
  std::vector<ParameterUse> uses(parameters_.size());
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = use_of(i);
  if (is_anothers_pass())
    std::replace(uses.begin(), uses.end(), ParameterUse::missing, ParameterUse::elsewhere);
  report_.samples = samples_;
  forget_window();
  pass_.end();
  return agreement_.exchange(report_, uses, groups_.own, exception);
}

ParameterUse Reducer::use_of(std::size_t index) const {
  if (!hooks_.is_in_charge(index)) return ParameterUse::elsewhere;
  if (counts_.is_known()) {
    if (counts_.misses(index)) return ParameterUse::missing;
    return counts_.expects(index) ? ParameterUse::used : ParameterUse::unused;
  }
  if (touched_[index]) return ParameterUse::used;
  if (!parameters_[index].second.requires_grad()) return ParameterUse::unused;  // Frozen meanwhile.
  return options_.find_unused_parameters || counts_.is_recording() ? ParameterUse::unused
                                                                   : ParameterUse::missing;
}

// One of another reducer: no gradient has come but of parameters that both have.
bool Reducer::is_anothers_pass() const {
  bool has_common = false;
  bool has_own = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (hooks_.has_others(i)) {
      has_common = true;
    } else if (touched_[i]) {
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
    drop_gradients();
    throw;
  }
  drop_gradients();
  return false;
}

// Sinks make means over ranks; what else they should be a mean of is known only here.
double Reducer::factor_of(const PassReports& reports) const {
  if (options_.mean == GradientMean::over_samples) return groups_.own.size() / reports.samples();
  if (join_ != nullptr && !join_->options().divide_by_initial_world_size)
    return static_cast<double>(groups_.own.size()) / join_->active_ranks();
  return 1;
}

void Reducer::drop_gradients() noexcept {
  sink_->release();
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

}  // namespace lockstep
