// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/gradient_intake.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/stopwatch.h"

namespace lockstep::parallel {
namespace {

void require_takeable(const std::string& name, at::Tensor& gradient, bool is_sparse,
                      c10::Device device) {
  std::string problem;
  if (gradient.layout() != at::kStrided && !is_sparse)
    problem = "the gradient of parameter " + name +
              " is sparse: name the parameter in the option sparse_gradients";
  else if (gradient.layout() != at::kSparse && is_sparse)
    problem = "the gradient of parameter " + name +
              " is dense, and a sparse one was expected, from an Embedding or the option "
              "sparse_gradients: if forward() also uses the parameter in another way, make the "
              "Embedding without sparse(true)";
  else if (gradient.device() != device)
    problem = "parameter " + name + " was moved to " + gradient.device().str() +
              " after DistributedDataParallel was made";
  if (problem.empty()) return;
  gradient.reset();
  throw Error(Fault::unsupported, problem);
}

// The program has assigned such a gradient.
void require_shape(const std::string& name, const at::Tensor& gradient,
                   const at::Tensor& parameter) {
  require(gradient.sizes() == parameter.sizes(), [&] {
    return "the gradient of parameter " + name + " has another shape than the parameter";
  });
}

}  // namespace

GradientIntake::GradientIntake(const NamedTensors& parameters, const ParameterHooks& hooks,
                               std::unique_ptr<GradientSink> sink,
                               const DistributedDataParallelOptions& options)
    : parameters_(parameters),
      hooks_(hooks),
      device_(parameters.front().second.device()),
      sink_(std::move(sink)),
      traits_(sink_->traits()),
      plan_(parameters, options, traits_.own_buckets, traits_.is_sparse) {
  sink_->assign(plan_.assignment());
}

void GradientIntake::set_sink(std::unique_ptr<GradientSink> sink) {
  sink_->release();  // An interrupted pass may have left it active.
  sink->assign(plan_.assignment());
  sink_ = std::move(sink);
  traits_ = sink_->traits();
}

void GradientIntake::rebuild_buckets(const ProcessGroup& group) {
  auto rebuilt = plan_.rebuilt(parameters_, group);
  if (!rebuilt) return;
  sink_->assign(*rebuilt);
  plan_.assign(std::move(*rebuilt));
}

void GradientIntake::begin_pass(bool early, bool is_shadow) {
  is_shadow_ = is_shadow;
  early_ = sink_->begin(early && !plan_.is_recording_counts());
  report_ = {};
  plan_.begin_pass(hooks_.in_charge(), /*keeps_order=*/is_shadow);
}

void GradientIntake::add(std::size_t index, const at::Tensor& incoming) {
  const BucketPlan::Arrival arrival = plan_.note_arrival(index);
  if (arrival == BucketPlan::Arrival::repeated) report_.repeated = static_cast<std::int64_t>(index);
  if (arrival != BucketPlan::Arrival::complete) return;
  take(index, incoming);
  while (early_ && plan_.is_next_complete()) finish_bucket();
}

void GradientIntake::take(std::size_t index, const at::Tensor& incoming) {
  const Stopwatch watch(copy_time_);
  const at::NoGradGuard no_grad;
  const auto& [name, parameter] = parameters_[index];
  require(plan_.is_open(index), [&name = name] {
    return "the gradient of parameter " + name +
           " came after its bucket was started: forward() of another DistributedDataParallel with "
           "this parameter ran during backward()";
  });
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) require_takeable(name, gradient, is_sparse(index), device_);
  note(index, sink_->take(index, gradient, incoming));
  plan_.note_taken(index);
}

void GradientIntake::note(std::size_t index, Taken taken) {
  const auto number = static_cast<std::int64_t>(index);
  if (taken == Taken::old_mean) report_.kept_mean = number;
  if (taken == Taken::non_finite && report_.non_finite == PassReport::none)
    report_.non_finite = number;
}

// A missing gradient is the accumulated one, or zero.
void GradientIntake::finish_bucket() {
  const Stopwatch watch(copy_time_);
  const at::NoGradGuard no_grad;
  for (const std::size_t i : plan_.assignment()[plan_.next()]) {
    if (plan_.is_taken(i)) continue;
    at::Tensor none;  // Must not be read while another reducer averages it.
    const bool is_read = !is_shadow_ && hooks_.is_in_charge(i);
    at::Tensor& gradient = is_read ? parameters_[i].second.mutable_grad() : none;
    if (gradient.defined()) require_shape(parameters_[i].first, gradient, parameters_[i].second);
    note(i, sink_->take_left_out(i, gradient));
  }
  sink_->start(plan_.next());
  plan_.advance();
}

void GradientIntake::complete() {
  while (plan_.has_next()) finish_bucket();
  const Stopwatch watch(wait_time_);
  if (const auto index = sink_->wait()) note(*index, Taken::non_finite);
}

void GradientIntake::finish(const PassReports& reports, double factor) {
  sink_->finish(reports, factor);
  has_passed_ = true;
  plan_.end_pass();
}

void GradientIntake::drop() noexcept {
  sink_->release();
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

BackwardTimes GradientIntake::times() const {
  return {.copy = copy_time_, .wait = wait_time_, .reduce = sink_->reduce_time()};
}

}  // namespace lockstep::parallel
