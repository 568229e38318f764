// How Reducer averages the gradients of a backward pass, from the first one that comes to what all
// ranks have said of theirs.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/exception_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/steps.h"
#include "lockstep/parallel/gradients/give_up_later.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/scaled_copy.h"
#include "lockstep/parallel/gradients/stopwatch.h"

namespace lockstep {

// Thrown on all ranks alike, as all read the same reports.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

namespace {

bool is_agreed(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const AgreedError&) {
    return true;
  } catch (...) {
  }
  return false;
}

}  // namespace

void Reducer::watch(const at::Tensor& output) {
  if (!synchronize_ || !output.requires_grad()) return;
  output.register_hook([this, alive = std::weak_ptr<const bool>(alive_)](const at::Tensor&) {
    if (!alive.expired() && synchronize_ && reaches_parameters()) begin_pass(/*watched=*/true);
  });
}

// Not so where all are frozen for the time being, and for autograd::grad() with respect to other
// tensors: a GAN's discriminator in its generator's step, and a gradient penalty.
bool Reducer::reaches_parameters() const {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  const bool everything = wanted == nullptr || wanted->empty();  // backward()
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (!is_ours(i) || !parameters_[i].second.requires_grad()) continue;
    if (everything) return true;
    const auto found = wanted->find(hooks_[i]->accumulator());
    if (found != wanted->end() && found->second.should_execute()) return true;
  }
  return false;
}

// One of another reducer: no gradient has come but of parameters that both have.
bool Reducer::is_anothers_pass() const {
  bool has_common = false;
  bool has_own = false;
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    if (hooks_[i]->has_others()) {
      has_common = true;
    } else if (touched_[i]) {
      return false;
    } else if (parameters_[i].second.requires_grad()) {
      has_own = true;
    }
  }
  return has_common && has_own;
}

Reducer::Pass::Pass(Reducer& reducer)
    : arming_(reducer.pool()),
      result_(GraphTaskResult::of_this_thread()),
      reducer_(reducer),
      alive_(reducer.alive_),
      is_on_device_(reducer.is_on_device()) {}

Reducer::Pass::~Pass() {
  // There autograd's thread may have come here, while the caller's has gone on or destroys
  // reducer_.
  if (is_on_device_ || alive_.expired()) return;
  reducer_.longest_pass_ =
      std::max<std::chrono::nanoseconds>(reducer_.longest_pass_, Clock::now() - begin_);
  if (has_reported) return;
  const std::exception_ptr error = result_.exception();
  const bool is_told = is_agreed(error);  // Of another reducer's pass, by all ranks.
  reducer_.drop_with_the_others(error, [this, is_told](std::string_view text) {
    if (is_told) return reducer_.finish_buckets();
    if (!has_announced) reducer_.announce();
    reducer_.finish_buckets();
    reducer_.exchange_reports(text);
  });
}

// The others may wait for this rank in a group that we know nothing of; then it is the end of all
// groups that they hear of, and this rank's exception must not wait for them.
void Reducer::drop_with_the_others(const std::exception_ptr& error,
                                   const TakePart& take_part) noexcept {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max<std::chrono::nanoseconds>(std::chrono::seconds(5), 3 * longest_pass_));
  try {
    const std::string text =
        error ? exception_text(error) : "an exception that is not derived from std::exception";
    const std::string reason = "a pass of DistributedDataParallel ended with " + text;
    const GiveUpLater unless_they_come({group_, given_}, reason, patience);
    try {
      take_part(text);
    } catch (...) {
      group_.abort(reason);
    }
  } catch (...) {  // No memory or no thread for it: they learn when this rank ends.
  }
  drop();
}

void Reducer::drop() {
  reduction_.drain();  // Its thread reads the buckets.
  forget_window();
  drop_gradients();
}

void Reducer::forget_window() {
  samples_ = 0;
  touched_.assign(touched_.size(), false);
}

// Each backward() is a graph task of its own, and so is each that it nests.
void Reducer::begin_pass(bool watched) {
  require(options_.deterministic == 0,
          "backward(): with deterministic, it runs within train_pieces() only");
  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_.expired() && (task == graph_task_ || (watched_ && !watched))) return;
  reset_pass();
  if (!rebuilt_) arrival_.clear();
  graph_task_ = task;
  watched_ = watched;
  auto pass = std::make_shared<Pass>(*this);
  pass_ = pass;
  if (is_on_device()) unreported_.emplace(GraphTaskResult::of_this_thread());
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this, pass = std::move(pass)] { finish_pass(*pass); });
}

// Its thread may be anywhere when backward() has thrown here: it is done by the caller's next call.
void Reducer::forget_pass_cut_short() {
  if (!unreported_ || !unreported_->exception()) return;
  unreported_.reset();
  forget_window();
  ++passes_;  // Other ranks may have gone on with theirs.
}

void Reducer::reset_pass() {
  forget_pass_cut_short();
  reduction_.drain();  // Of what a pass that an exception cut short has left under way.
  pass_.reset();
  if (recording_) expected_.assign(expected_.size(), 0);  // An Error may have ended the last try.
  remaining_ = expected_;
  taken_.assign(parameters_.size(), false);
  report_ = {};
  finite_check_.clear();
  next_bucket_ = 0;
  pending_.clear();
  for (const auto& indices : assignment_)
    pending_.push_back(
        static_cast<std::size_t>(std::count_if(indices.begin(), indices.end(), [&](std::size_t i) {
          return expected_[i] > 0 && is_ours(i);
        })));
}

// Runs on the thread that called backward(), or on autograd's own of the device, once `.grad` of
// the parameter is complete: `incoming`, or the sum of it and what there was before.
void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  touched_[index] = is_ours(index) || !synchronize_;  // Otherwise another reducer averages it.
  if (!synchronize_ || !is_ours(index)) return;
  begin_pass(/*watched=*/false);
  if (recording_) {
    ++expected_[index];
    return;
  }
  if (remaining_[index] == 0) {
    report_.repeated = static_cast<std::int64_t>(index);
    return;
  }
  if (--remaining_[index] > 0) return;
  take(index, incoming);
  if (!rebuilt_) arrival_.push_back(index);
  if (starts_early())
    while (next_bucket_ < pending_.size() && pending_[next_bucket_] == 0) finish_bucket();
}

void Reducer::take(std::size_t index, const at::Tensor& incoming) {
  const Stopwatch watch(copy_time_);
  const auto& [name, parameter] = parameters_[index];
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) require_takeable(name, gradient);
  if (owned_) {
    take_owned(index, incoming);
  } else if (buckets_ != nullptr) {
    note_finite(index, buckets_->take(index, gradient, incoming, checks_finite()));
    --pending_[buckets_->bucket_of(index)];
    reduction_.follow();
  } else if (gradient.defined() && checks_finite() && !is_on_device()) {
    note_finite(index, all_finite(gradient));
  }
  taken_[index] = true;
}

// One that is refused goes at once: what is left of the pass could not read it.
void Reducer::require_takeable(const std::string& name, at::Tensor& gradient) const {
  std::string problem;
  if (gradient.layout() != at::kStrided)
    problem = "the gradient of parameter " + name + " is sparse";
  else if (gradient.device() != device_)
    problem = "parameter " + name + " was moved to " + gradient.device().str() +
              " after DistributedDataParallel was made";
  if (problem.empty()) return;
  gradient.reset();
  throw Error(Fault::unsupported, problem);
}

void Reducer::take_owned(std::size_t index, const at::Tensor& incoming) {
  note_mean(index);
  note_finite(index, owned_->take(index, parameters_[index].second.mutable_grad(), incoming,
                                  checks_finite()));
  --pending_[owned_->bucket_of(index)];
}

void Reducer::note_mean(std::size_t index) {
  if (owned_->is_mean(index, parameters_[index].second.grad()))
    report_.kept_mean = static_cast<std::int64_t>(index);
}

void Reducer::note_finite(std::size_t index, bool finite) {
  if (!finite && report_.non_finite == PassReport::none)
    report_.non_finite = static_cast<std::int64_t>(index);
}

// The next bucket is complete, or will not become more so: what has not come in this pass is what
// had accumulated before, or zero, and stays what it is unless another rank turns out to have one.
void Reducer::finish_bucket() {
  const Stopwatch watch(copy_time_);
  const at::NoGradGuard no_grad;
  for (const std::size_t i : assignment_[next_bucket_]) {
    if (!taken_[i]) note_finite(i, take_left_out(i));
  }
  if (owned_)
    reduction_.start([this, bucket = next_bucket_] { owned_->reduce(bucket); });
  else if (overlaps())
    reduction_.start([this, bucket = next_bucket_] {
      enqueue_check(bucket);
      reduction_.reduce(*buckets_, bucket);
    });
  else
    enqueue_check(next_bucket_);
  ++next_bucket_;
}

void Reducer::enqueue_check(std::size_t bucket) {
  if (is_on_device() && checks_finite())
    finite_check_.enqueue(assignment_[bucket],
                          [this](std::size_t i) { return buckets_->taken(i); });
}

bool Reducer::take_left_out(std::size_t index) {
  at::Tensor none;  // While another reducer averages it, it is not ours to read.
  at::Tensor& gradient = is_ours(index) ? parameters_[index].second.mutable_grad() : none;
  if (!owned_) return buckets_->take_left_out(index, gradient, checks_finite());
  note_mean(index);
  return owned_->take_left_out(index, gradient, checks_finite());
}

void Reducer::finish_pass(Pass& pass) {
  const at::NoGradGuard no_grad;
  pass.has_announced = true;
  announce();
  finish_buckets();
  pass.has_reported = true;
  unreported_.reset();
  const PassReports reports = exchange_reports();
  if (!may_go_on(reports)) return;
  if (buckets_ != nullptr && !overlaps()) reduction_.run(*buckets_);
  divide(reports);
  adopt_left_out(reports);
  learn();
  count_step(group_);
}

// Ranks without input left learn that a pass is about to be averaged.
void Reducer::announce() {
  if (join_ != nullptr) join_->exchange(Join::Step::average_gradients);
}

// Those that the gradients have not completed; then waits for all that are reduced already.
void Reducer::finish_buckets() {
  while ((buckets_ || owned_) && next_bucket_ < assignment_.size()) finish_bucket();
  if (!buckets_ && !owned_) check_kept();
  if (overlaps() || owned_) {
    const Stopwatch watch(wait_time_);
    reduction_.wait();
  }
  note_device_check();
}

// The one time in a pass that this thread waits for the device.
void Reducer::note_device_check() {
  const Stopwatch watch(wait_time_);
  if (const auto index = finite_check_.first_non_finite()) note_finite(*index, false);
}

// Of one rank without buckets, the gradients that take() has not looked at.
void Reducer::check_kept() {
  if (!checks_finite() || !(recording_ || is_on_device())) return;
  const auto gradient_of = [this](std::size_t i) { return parameters_[i].second.grad(); };
  std::vector<std::size_t> came;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if ((recording_ ? expected_[i] > 0 : taken_[i]) && gradient_of(i).defined()) came.push_back(i);
  if (is_on_device()) return finite_check_.enqueue(came, gradient_of);
  for (const std::size_t i : came) note_finite(i, all_finite(gradient_of(i)));
}

void Reducer::shadow_pass() {
  require(!recording_,
          "join(): a rank without any input cannot tell what a static graph looks like");
  reset_pass();
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  if (buckets_ != nullptr) buckets_->take_zeros();
  const std::vector<ParameterUse> uses(parameters_.size(), ParameterUse::unused);
  report_.pass = ++passes_;
  const PassReports reports(report_, uses, group_);
  if (!may_go_on(reports)) return;
  if (buckets_ != nullptr) reduction_.run(*buckets_);
  learn();
}

std::optional<PassReports> Reducer::agree(PassReport report, const std::vector<ParameterUse>& uses,
                                          std::string_view exception) {
  report.pass = ++passes_;
  const PassReports reports(report, uses, group_, exception);
  if (!may_go_on(reports)) return {};
  return reports;
}

PassReports Reducer::exchange_reports(std::string_view exception) {
  const Stopwatch watch(wait_time_);
  std::vector<ParameterUse> uses(parameters_.size());
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = use_of(i);
  if (is_anothers_pass())
    std::replace(uses.begin(), uses.end(), ParameterUse::missing, ParameterUse::elsewhere);
  report_.pass = ++passes_;
  report_.samples = samples_;
  forget_window();
  pass_.reset();
  return {report_, uses, group_, exception};
}

ParameterUse Reducer::use_of(std::size_t index) const {
  if (!is_ours(index)) return ParameterUse::elsewhere;
  if (options_.static_graph && !recording_) {
    if (remaining_[index] > 0) return ParameterUse::missing;
    return expected_[index] > 0 ? ParameterUse::used : ParameterUse::unused;
  }
  if (touched_[index]) return ParameterUse::used;
  if (!parameters_[index].second.requires_grad()) return ParameterUse::unused;  // Frozen meanwhile.
  return options_.find_unused_parameters || recording_ ? ParameterUse::unused
                                                       : ParameterUse::missing;
}

bool Reducer::may_go_on(const PassReports& reports) {
  try {
    if (may_average(reports)) return true;
  } catch (const Error& error) {
    drop_gradients();
    throw AgreedError(error);
  }
  drop_gradients();
  return false;
}

void Reducer::drop_gradients() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
  if (buckets_ != nullptr) buckets_->release();
  if (owned_) owned_->release(/*means=*/false);
}

bool Reducer::may_average(const PassReports& reports) {
  passes_ = reports.last_pass();
  reports.require_no_exception();
  reports.require_same_pass();
  reports.require_complete(parameters_);
  require(options_.mean == GradientMean::over_ranks || reports.samples() > 0,
          "count_samples() has counted none on any rank, though gradients are means over samples");
  non_finite_.reset();
  if (options_.non_finite == NonFinite::ignore) return true;
  non_finite_ = reports.non_finite(parameters_);
  if (!non_finite_) return true;
  const std::string text = "the gradient of " + non_finite_->parameter + " on rank " +
                           std::to_string(non_finite_->rank) + " is infinite or NaN";
  if (options_.non_finite == NonFinite::fail) throw Error(Fault::corrupt, text);
  if (group_.rank() == 0) log(LogLevel::warning, text + ": all ranks skip this step");
  return false;
}

// Gradients are means over ranks now; what else they should be a mean of is known only here.
void Reducer::divide(const PassReports& reports) const {
  double factor = 1;
  if (options_.mean == GradientMean::over_samples) {
    factor = group_.size() / reports.samples();
  } else if (join_ != nullptr && !join_->options().divide_by_initial_world_size) {
    factor = static_cast<double>(group_.size()) / join_->active_ranks();
  }
  if (factor == 1) return;
  if (buckets_ != nullptr) return buckets_->multiply(factor);
  if (owned_) return owned_->multiply(factor);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (reports.used_by_any(i) && parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
  }
}

void Reducer::adopt_left_out(const PassReports& reports) {
  if (!buckets_ && !owned_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (taken_[i] || !reports.used_by_any(i)) continue;
    at::Tensor& gradient = parameters_[i].second.mutable_grad();
    owned_ ? owned_->adopt(i, gradient) : buckets_->adopt(i, gradient);
  }
}

void Reducer::learn() {
  if (buckets_ != nullptr) buckets_->release();
  if (owned_) owned_->release(/*means=*/true);
  has_passed_ = true;
  if (!recording_) rebuild_due_ = !rebuilt_;
  recording_ = false;
}

}  // namespace lockstep
