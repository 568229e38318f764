// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/features.h"
#include "lockstep/parallel/gradients/join.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/gradients/sparse_gradients.h"
#include "lockstep/parallel/replicate/held_tensors.h"
#include "lockstep/parallel/replicate/module_replica.h"
#include "lockstep/parallel/replicate/own_experts.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/make_in_place.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/touched_tensors.h"

namespace lockstep {
namespace {

using parallel::Feature;
using parallel::Features;
using parallel::Join;
using parallel::ModuleReplica;
using parallel::Reducer;

void require_cpu(const torch::nn::Module& module, const std::string& option) {
  for (const auto& [name, parameter] : named_parameters(module))
    if (parameter.requires_grad() && !parameter.is_cpu())
      throw Error(Fault::unsupported, option + ": only in CPU memory, and parameter " + name +
                                          " is on " + parameter.device().str());
}

// Collective: checks that options are equal and compatible.
Features features_of(const std::shared_ptr<torch::nn::Module>& module, const ProcessGroup& group,
                     const DistributedDataParallelOptions& options, bool is_deterministic) {
  require(module != nullptr, "data parallel training: there is no module");
  parallel::require_same_options(options, group);
  Features features(options);
  if (is_deterministic) require_cpu(*module, "DeterministicDataParallel");
  features.set(Feature::deterministic, is_deterministic);
  if (has_experts(*module)) {
    features.require_allowed(Feature::experts);
    features.set(Feature::experts, true);
  }
  if (!parallel::sparse_parameters(*module, options.sparse_gradients).empty()) {
    features.require_allowed(Feature::sparse_gradients);
    features.set(Feature::sparse_gradients, true);
  }
  return features;
}

// While it exists, passes and broadcasts of buffers are announced, but no exception.
class Joining {
 public:
  Joining(ModuleReplica& replica, Reducer& reducer, Features& features, Join& join)
      : replica_(replica), reducer_(reducer), features_(features) {
    set(&join);
  }
  ~Joining() { set(nullptr); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

 private:
  void set(Join* join) {
    replica_.set_join(join);
    reducer_.set_join(join);
    features_.set(Feature::join, join != nullptr);
  }

  ModuleReplica& replica_;
  Reducer& reducer_;
  Features& features_;
};

}  // namespace

DataParallelBase::NoSync::NoSync(bool& synchronize, bool active)
    : synchronize_(synchronize), before_(std::exchange(synchronize, synchronize && !active)) {}

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   const ProcessGroup& group,
                                   const DistributedDataParallelOptions& options,
                                   const Parts& parts)
    : features_(
          std::make_unique<Features>(features_of(module, group, options, parts.is_deterministic))),
      replica_(std::make_unique<ModuleReplica>(std::move(module), group, options, parts.store)),
      sinks_(std::make_unique<parallel::SinkChoice>(
          replica_->averaged_parameters(),
          parallel::sparse_parameters(replica(), options.sparse_gradients), group, options,
          parts.sink_needs_own_group)),
      reducer_(std::make_unique<Reducer>(
          sinks_->parameters(), parts.sink ? parts.sink(*replica_, *sinks_) : sinks_->sink(),
          Reducer::Groups{.own = sinks_->group(), .given = group}, options, *features_)),
      stepping_group_(parts.stepping_group.value_or(group)) {}

DataParallelBase::~DataParallelBase() = default;

std::shared_ptr<parallel::SteppedSlices> DataParallelBase::slices_of(
    const std::vector<at::Tensor>&) const {
  return nullptr;
}

const torch::nn::Module& DataParallelBase::replica() const { return replica_->module(); }

const ProcessGroup& DataParallelBase::group() const { return replica_->group(); }

bool DataParallelBase::shares_parameters() const { return replica_->shared() != nullptr; }

bool DataParallelBase::has_partially_updated_parameters() const {
  return replica_->is_partially_updated();
}

void DataParallelBase::change_values(
    const std::function<void(const std::function<void()>& change)>& act,
    const std::function<void()>& change) {
  act(change);
}

void DataParallelBase::edit_parameters(const std::function<void()>& change) {
  change_values([this](const auto& first) { replica_->edit(first); }, change);
}

void DataParallelBase::initialize(
    const std::function<void(const std::string&, at::Tensor&)>& fill) {
  initialize_by([&] {
    const NamedTensors tensors = named_tensors(replica());
    const auto firsts = first_names(tensors);
    for (const auto& [name, tensor] : tensors) {
      if (firsts.at(name) != name) continue;
      at::Tensor value = tensor;
      touch(tensor);  // It may be filled without an operator.
      fill(name, value);
      if (value.is_same(tensor)) continue;
      require(value.defined() && value.sizes() == tensor.sizes(), [&, &name = name] {
        return "initialize: the tensor that was assigned to " + name + " has another shape";
      });
      at::Tensor(tensor).copy_(value);
    }
  });
}

void DataParallelBase::initialize_as(const MakeModule& make) {
  initialize_by([&] { make_in_place(make, replica_->tensors_on_host()); });
}

void DataParallelBase::initialize_by(const std::function<void()>& change) {
  change_values([this](const auto& first) { replica_->initialize(first); }, change);
}

bool DataParallelBase::is_initialized() const { return replica_->without_value().empty(); }

DataParallelBase::Forward::Forward(DataParallelBase& ddp)
    : replica_(*ddp.replica_), with_gradients_(at::GradMode::is_enabled()) {
  replica_.require_intact();
  if (with_gradients_) ddp.reducer_->prepare(ddp.synchronize_, replica_.change());
  ddp.replica_->before_forward(with_gradients_ && ddp.synchronize_);
}

DataParallelBase::Forward::~Forward() {
  if (!with_gradients_) replica_.after_evaluation();
}

void DataParallelBase::watch(const at::Tensor& output) { reducer_->watch(output); }

DataParallelBase::NoSync DataParallelBase::no_sync(bool active) { return {synchronize_, active}; }

void DataParallelBase::count_samples(double samples) {
  require(features_->has(Feature::over_samples),
          "count_samples: gradients are means over ranks; set GradientMean::over_samples");
  require(samples >= 0 && std::isfinite(samples),
          "count_samples: the number of samples is negative or not finite");
  reducer_->count_samples(samples);
}

const std::optional<NonFiniteGradient>& DataParallelBase::non_finite() const {
  return reducer_->agreement().non_finite();
}

DataParallelStats DataParallelBase::stats() const {
  const parallel::GradientSink& sink = reducer_->sink();
  return {.is_overlapped = sinks_->is_overlapped() || sink.traits().is_overlapped,
          .shards_gradients = features_->has(Feature::shard_gradients),
          .has_gradient_views = features_->has(Feature::bucket_views),
          .buckets = reducer_->assignment(),
          .times = reducer_->times(),
          .gradient_memory = sink.memory()};
}

std::unique_ptr<HeldTensors> DataParallelBase::held_tensors() {
  if (!replica_->shared()) return whole_tensors_of(replica());
  return slices_held(replica(), replica_->shared(), group());
}

DistributedDataParallelBase::DistributedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
    const DistributedDataParallelOptions& options)
    : DataParallelBase(std::move(module), group, options, {}) {}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

void DistributedDataParallelBase::require_allowed(Feature feature) {
  features_->set(Feature::common_parameters, reducer_->has_others());
  features_->require_allowed(feature);
}

void DistributedDataParallelBase::register_comm_hook(CommunicationHook hook) {
  require_allowed(Feature::comm_hook);
  require(static_cast<bool>(hook), "register_comm_hook: there is no hook");
  require(!reducer_->has_passed(), "register_comm_hook: a backward pass has been averaged already");
  auto [sink, own_group] = sinks_->with_hook(std::move(hook));
  reducer_->set_sink(std::move(sink), own_group);
  features_->set(Feature::comm_hook, true);
}

void DistributedDataParallelBase::shard_gradients(WholeParameterOptimizer& optimizer) {
  require_allowed(Feature::shard_gradients);
  require_cpu(replica(), "shard_gradients");
  require(!reducer_->has_passed(), "shard_gradients: a backward pass has been averaged already");
  require(optimizer.partition().size() == static_cast<std::size_t>(group().size()),
          "shard_gradients: the optimizer was made for another number of ranks");
  std::vector<int> owners;
  for (const auto& [name, parameter] : reducer_->parameters())
    owners.push_back(optimizer.owner(parameter));
  if (group().size() == 1) return;  // This rank owns all parameters.
  auto [sink, own_group] = sinks_->with_owners(std::move(owners));
  reducer_->set_sink(std::move(sink), own_group);
  features_->set(Feature::shard_gradients, true);
  reducer_->agreement().compare_weights();
  optimizer.has_gradients_apart_ = true;
}

void DistributedDataParallelBase::measure(const std::shared_ptr<parallel::GradientNoise>& noise) {
  require_allowed(Feature::noise_scale);
  reducer_->agreement().measure(noise);
  features_->set_while(Feature::noise_scale, noise);
}

void DistributedDataParallelBase::join_others(const std::function<void()>& train,
                                              const JoinOptions& options) {
  require_allowed(Feature::join);
  Join join(group(), options);
  const Joining joining(*replica_, *reducer_, *features_, join);
  train();
  while (const auto step = join.exchange(Join::Step::joined)) {
    if (*step == Join::Step::average_gradients)
      reducer_->shadow_pass();
    else
      replica_->broadcast_buffers(join.largest_active_rank());
  }
  replica_->become(join.largest_active_rank());
  reducer_->forget_window();  // The others' last pass may have been under no_sync().
}

std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                         std::function<at::Tensor()> closure) {
  require(static_cast<bool>(closure), "average_loss: there is no closure");
  return [&ddp, closure = std::move(closure)] {
    require(!ddp.features_->has(Feature::join),
            "average_loss: within join(), ranks call the closure unequal numbers of times");
    const auto& agreement = ddp.reducer_->agreement();
    const std::int64_t passes = *agreement.passes();
    const at::Tensor loss = closure();
    require(loss.defined() && loss.numel() == 1,
            "average_loss: the closure must return a loss of one element");
    const bool over_samples = ddp.features_->has(Feature::over_samples);
    require(!over_samples || *agreement.passes() != passes,
            "average_loss: the closure has averaged no backward(), so the number of samples is "
            "unknown");
    const at::NoGradGuard no_grad;
    at::Tensor mean = loss.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    all_reduce(mean, ddp.group(), over_samples ? ReduceOp::sum : ReduceOp::average,
               {.label = "loss of a closure"});
    if (over_samples) mean.div_(agreement.samples());
    return mean.to(loss.scalar_type());
  };
}

}  // namespace lockstep
