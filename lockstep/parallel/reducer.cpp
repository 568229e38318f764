// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/steps.h"
#include "lockstep/parallel/large_gradient.h"
#include "lockstep/parallel/overlap.h"
#include "lockstep/parallel/scaled_copy.h"
#include "lockstep/parallel/stopwatch.h"

namespace lockstep {
namespace {

using torch::autograd::variable_list;

// A parameter that two modules share has two names, but one gradient.
NamedTensors only_trained(NamedTensors parameters) {
  std::set<const void*> seen;
  std::erase_if(parameters, [&](const auto& entry) {
    const at::Tensor& parameter = entry.second;
    return !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
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
}

// Gives a group of our own up where a collective would otherwise keep the thread: the one case in
// which a destructor tells the other ranks something.
Reducer::~Reducer() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
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

Reducer::Hook Reducer::hook_on(std::size_t index) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[index].second);
  auto hook = std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [this, index](const variable_list& outputs, const variable_list& incoming) {
        on_gradient(index, incoming[0]);
        return outputs;
      });
  const std::uintptr_t key = accumulator->add_post_hook(std::move(hook));
  return {std::move(accumulator), key};
}

// torch::load() gives a parameter another accumulator.
void Reducer::renew_hooks() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    Hook& hook = hooks_[i];
    const auto current = torch::autograd::impl::grad_accumulator(parameters_[i].second);
    if (current == nullptr || current == hook.accumulator) continue;  // Frozen, or the same.
    hook.accumulator->del_post_hook(hook.key);
    hook = hook_on(i);
  }
}

void Reducer::set_hook(CommunicationHook hook) {
  require(static_cast<bool>(hook), "register_comm_hook: there is no hook");
  require(!reduction_.has_hook(), "register_comm_hook: there is one already");
  if (!averages_in_backward(options_) || owned_)
    throw Error(
        Fault::unsupported,
        "register_comm_hook: gradients that are shared, sharded or of pieces lie in no bucket");
  require(!has_passed_, "register_comm_hook: a backward pass has been averaged already");
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
  join_ = join;
}

// --- Buckets ------------------------------------------------------------------------------------

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
                   {.tag = "order of gradients"});
  std::vector<at::Tensor> in_order;
  for (const std::size_t i : arrival_) in_order.push_back(parameters_[i].second);
  auto assignment = compute_bucket_assignment_by_size(in_order, limits_.rebuilt, arrival_);
  arrival_.clear();
  if (assignment != assignment_) make_buckets(std::move(assignment));
}

void Reducer::prepare(bool synchronize) {
  renew_hooks();
  if (rebuild_due_ && join_ == nullptr) rebuild_buckets();
  synchronize_ = synchronize;
}

// --- A pass -------------------------------------------------------------------------------------

void Reducer::watch(const at::Tensor& output) {
  if (!synchronize_ || !output.requires_grad()) return;
  output.register_hook([this, alive = std::weak_ptr<const bool>(alive_)](const at::Tensor&) {
    if (!alive.expired() && synchronize_ && reaches_parameters()) begin_pass(/*watched=*/true);
  });
}

// Not so where all are frozen for the time being, and for autograd::grad() with respect to other
// tensors: a GAN's discriminator in its generator's step, and a gradient penalty.
bool Reducer::reaches_parameters() const {
  if (std::none_of(parameters_.begin(), parameters_.end(),
                   [](const auto& entry) { return entry.second.requires_grad(); }))
    return false;
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;  // backward(): everything.
  return std::any_of(hooks_.begin(), hooks_.end(), [&](const Hook& hook) {
    const auto found = wanted->find(hook.accumulator.get());
    return found != wanted->end() && found->second.should_execute();
  });
}

Reducer::Pass::Pass(Reducer& reducer)
    : arming_(reducer.pool()), reducer_(reducer), alive_(reducer.alive_) {}

Reducer::Pass::~Pass() {
  if (is_complete || alive_.expired()) return;
  reducer_.forget_window();
  ++reducer_.passes_;  // Other ranks may have gone on with theirs.
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
  torch::autograd::Engine::get_default_engine().queue_callback([this, pass = std::move(pass)] {
    pass->is_complete = true;
    finish_pass();
  });
}

void Reducer::reset_pass() {
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
    pending_.push_back(static_cast<std::size_t>(std::count_if(
        indices.begin(), indices.end(), [&](std::size_t i) { return expected_[i] > 0; })));
}

// Runs on the thread that called backward(), or on autograd's own of the device, once `.grad` of the
// parameter is complete: `incoming`, or the sum of it and what there was before.
void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  touched_[index] = true;
  if (!synchronize_) return;
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
  if (gradient.defined() && gradient.layout() != at::kStrided)
    throw Error(Fault::unsupported, "the gradient of parameter " + name + " is sparse");
  if (gradient.defined() && gradient.device() != device_)
    throw Error(Fault::unsupported, "parameter " + name + " was moved to " +
                                        gradient.device().str() +
                                        " after DistributedDataParallel was made");
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
  at::Tensor& gradient = parameters_[index].second.mutable_grad();
  if (!owned_) return buckets_->take_left_out(index, gradient, checks_finite());
  note_mean(index);
  return owned_->take_left_out(index, gradient, checks_finite());
}

void Reducer::finish_pass() {
  const at::NoGradGuard no_grad;
  if (join_ != nullptr) join_->exchange(Join::Step::average_gradients);
  while ((buckets_ || owned_) && next_bucket_ < assignment_.size()) finish_bucket();
  if (!buckets_ && !owned_) check_kept();
  if (overlaps() || owned_) {
    const Stopwatch watch(wait_time_);
    reduction_.wait();
  }
  note_device_check();
  const PassReports reports = exchange_reports();
  if (!may_go_on(reports)) return;
  if (buckets_ != nullptr && !overlaps()) reduction_.run(*buckets_);
  divide(reports);
  adopt_left_out(reports);
  learn();
  count_step(group_);
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
    if (recording_ ? expected_[i] > 0 : taken_[i]) came.push_back(i);
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

std::optional<PassReports> Reducer::agree(PassReport report,
                                          const std::vector<ParameterUse>& uses) {
  report.pass = ++passes_;
  const PassReports reports(report, uses, group_);
  if (!may_go_on(reports)) return {};
  return reports;
}

void Reducer::abandon_pass() {
  drop_gradients();
  ++passes_;  // Other ranks may have gone on with theirs.
}

PassReports Reducer::exchange_reports() {
  const Stopwatch watch(wait_time_);
  std::vector<ParameterUse> uses(parameters_.size());
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i] = use_of(i);
  report_.pass = ++passes_;
  report_.samples = samples_;
  forget_window();
  pass_.reset();
  return PassReports(report_, uses, group_);
}

ParameterUse Reducer::use_of(std::size_t index) const {
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
  } catch (...) {
    drop_gradients();
    throw;
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

BackwardTimes Reducer::times() const {
  return {.copy = copy_time_, .wait = wait_time_, .reduce = reduction_.time()};
}

}  // namespace lockstep
