// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_state.h"
#include "lockstep/parallel/fully_sharded/gathered_parameters.h"
#include "lockstep/parallel/fully_sharded/offloaded_parameters.h"
#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/fully_sharded/unit_gradients.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/replicate/module_replica.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/replicate/shared_parameters.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using parallel::ParameterStore;
using parallel::ShardedUnits;
using parallel::UnitGradients;

DistributedDataParallelOptions data_parallel_options(const FullyShardedOptions& options) {
  return {.broadcast_buffers = options.broadcast_buffers,
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .share_parameters = true,
          .mean = options.mean,
          .non_finite = options.non_finite};
}

// Options that DistributedDataParallel does not have.
void require_same_options(const FullyShardedOptions& options, const ProcessGroup& group) {
  std::string text = options.overlap ? (*options.overlap ? "overlap" : "no overlap") : "";
  text += "\nresident_units " + std::to_string(options.resident_units);
  if (!options.reshard_after_forward) text += ", kept after forward()";
  if (options.offload) text += "\noffload to " + c10::DeviceTypeName(options.offload->type());
  if (options.shard) text += "\nshard";
  if (options.param_type) {
    text += "\nparam_type ";
    text += c10::toString(*options.param_type);
    text += ", reduce_type ";
    text += c10::toString(options.reduce_type);
  }
  for (const std::string& pattern : options.units) text += "\n" + pattern;
  parallel::require_same_lines(text, "the options of FullyShardedDataParallel", group);
}

bool is_on_meta(const NamedTensors& parameters) {
  return std::ranges::any_of(parameters, [](const auto& named) { return named.second.is_meta(); });
}

void move_buffers(const torch::nn::Module& module, c10::Device device) {
  require(!device.is_cpu() && !device.is_meta(),
          [&] { return "offload: weights cannot be offloaded from device " + device.str(); });
  for (const auto& [name, parameter] : named_parameters(module))
    if (!parameter.is_cpu() && !parameter.is_meta())
      throw Error(Fault::unsupported,
                  "offload: parameter " + name + " is on " + parameter.device().str() +
                      ", and not in CPU memory, from which it comes to the device");
  for (const auto& [name, buffer] : named_buffers(module))
    if (buffer.is_meta())
      move_from_meta(buffer, at::zeros_like(buffer, device));
    else
      buffer.set_data(buffer.detach().to(device));
}

// backward() has computed the means.
class SlicesOfUnits final : public parallel::SteppedSlices {
 public:
  SlicesOfUnits(const std::vector<at::Tensor>& parameters, std::shared_ptr<ShardedUnits> units)
      : units_(std::move(units)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      indices_.push_back(units_->index_of(parameters[i]));
      types_.push_back(units_->type_of(parameters[i]));
      for (const ShardedUnits::Fragment& fragment : units_->fragments_of(parameters[i])) {
        const Shard& shard = fragment.shard;
        shards_.push_back({i, shard.begin, shard.end, shard.owner});
        if (!fragment.tensor.defined()) continue;
        stepped_.push_back(fragment);
        fragments_.push_back(fragment.tensor);
      }
    }
    for (const auto& i : indices_)
      if (i) units_->add_stepper(*i);
  }
  ~SlicesOfUnits() override {
    for (const auto& i : indices_)
      if (i) units_->remove_stepper(*i);
  }
  SlicesOfUnits(const SlicesOfUnits&) = delete;
  SlicesOfUnits& operator=(const SlicesOfUnits&) = delete;

  const std::vector<Shard>& shards() const override { return shards_; }
  const std::vector<at::Tensor>& fragments() const override { return fragments_; }

  std::vector<at::ScalarType> types() const override { return types_; }

  bool average() override {
    used_.clear();
    for (const auto& i : indices_) used_.push_back(i && units_->is_used(*i));
    return false;
  }

  bool is_averaged() const override { return true; }
  const std::vector<bool>& used() const override { return used_; }

  void publish() override {
    for (const ShardedUnits::Fragment& fragment : stepped_) fragment.publish();
  }

  // Other optimizers may step the other parameters.
  void forget() override {
    for (const at::Tensor& fragment : fragments_) fragment.mutable_grad().reset();
    for (const auto& i : indices_)
      if (i) units_->set_unused(*i);
  }

  std::vector<at::Tensor> memory() const override { return units_->memory(); }

 private:
  const std::shared_ptr<ShardedUnits> units_;
  std::vector<std::optional<std::size_t>> indices_;  // By the optimizer's parameter, as types_.
  std::vector<at::ScalarType> types_;
  std::vector<Shard> shards_;
  std::vector<ShardedUnits::Fragment> stepped_;
  std::vector<at::Tensor> fragments_;
  std::vector<bool> used_;
};

}  // namespace

struct FullyShardedBase::Setup {
  Setup(const torch::nn::Module* module, const ProcessGroup& all,
        const FullyShardedOptions& options)
      : shard(options.shard.value_or(all)),
        groups(parallel::host_groups(shard, "gathers of units")),
        copy(all.rank()) {
    require_same_options(options, all);
    require(options.resident_units > 0, "FullyShardedDataParallel: resident_units is 0");
    require(c10::isFloatingType(options.param_type.value_or(at::kFloat)) &&
                c10::isFloatingType(options.reduce_type),
            "FullyShardedDataParallel: param_type and reduce_type are floating-point types");
    shard.all_reduce({.data = &copy, .count = 1, .dtype = DType::int32}, ReduceOp::min,
                     {.label = "number of a copy"});
    if (shard.size() < all.size()) {
      replicas = all.split(groups.own_slice(), copy, {.label = "replicas of shards"});
      require(replicas->size() * shard.size() == all.size(), [&] {
        return "FullyShardedDataParallel: groups of " + std::to_string(shard.size()) +
               " ranks each have a copy, and " + std::to_string(all.size()) +
               " ranks do not consist of such groups";
      });
    }
    if (module == nullptr) return;
    if (options.offload) move_buffers(*module, *options.offload);
    if (!options.param_type) return;
    const at::NoGradGuard no_grad;
    const NamedTensors parameters = distinct(named_parameters(*module));
    parallel::require_same_tensors(parameters, all);
    if (!is_on_meta(parameters)) parallel::broadcast_replica(parameters, all);
    for (const auto& [name, parameter] : parameters) {
      if (parameter.scalar_type() != at::kFloat || *options.param_type == at::kFloat) continue;
      masters.emplace(parameter.unsafeGetTensorImpl(), parameter.detach().clone());
      parameter.set_data(parameter.detach().to(*options.param_type));
    }
  }

  std::shared_ptr<ParameterStore> store(const NamedTensors& parameters,
                                        const FullyShardedOptions& options) const {
    const NamedTensors each = distinct(parameters);
    if (replicas && !is_on_meta(each)) parallel::broadcast_replica(each, *replicas);
    const auto units = parallel::units_of(each, options.units);
    const std::size_t resident =
        options.reshard_after_forward ? options.resident_units : units.size();
    const auto on_host = [&](const NamedTensors& some) -> std::shared_ptr<ParameterStore> {
      if (!groups.rail) return std::make_shared<parallel::SharedParameters>(some, shard);
      return std::make_shared<parallel::GatheredParameters>(some, units, resident, groups);
    };
    if (!options.offload) return on_host(each);
    return std::make_shared<parallel::OffloadedParameters>(each, units, resident, *options.offload,
                                                           on_host);
  }

  std::unique_ptr<UnitGradients> sink(const parallel::ModuleReplica& replica,
                                      const parallel::SinkChoice& sinks,
                                      const FullyShardedOptions& options) const {
    const ProcessGroup own = sinks.group();
    ShardedUnits::Ranks ranks{
        .copy = parallel::host_groups(own.split(copy, shard.rank(), {.label = "ranks of a copy"}),
                                      "gradients of units")};
    if (replicas)
      ranks.replicas = own.split(groups.own_slice(), copy, {.label = "gradients of replicas"});
    auto units = std::make_shared<ShardedUnits>(
        named_parameters(replica.module()), parallel::units_of(sinks.parameters(), options.units),
        replica.shared(), std::move(ranks), masters,
        parallel::GradientConversion{.from = options.param_type.value_or(at::kFloat),
                                     .to = options.param_type ? options.reduce_type : at::kFloat});
    const UnitGradients::Settings settings{
        .overlapped = parallel::agree_on_overlap({.overlap = options.overlap}, own,
                                                 sinks.parameters().front().second.device()),
        .check_finite = options.non_finite != NonFinite::ignore};
    return std::make_unique<UnitGradients>(sinks.parameters(), std::move(units), own, settings);
  }

  ProcessGroup shard;
  parallel::HostGroups groups;  // For `shard`.
  int copy;                     // Lowest rank of this copy in the whole group.
  std::optional<ProcessGroup> replicas = {};
  ShardedUnits::Masters masters = {};
};

FullyShardedBase::FullyShardedBase(std::shared_ptr<torch::nn::Module> module,
                                   const ProcessGroup& group, const FullyShardedOptions& options)
    : FullyShardedBase(module, group, options, Setup(module.get(), group, options)) {}

FullyShardedBase::FullyShardedBase(std::shared_ptr<torch::nn::Module> module,
                                   const ProcessGroup& group, const FullyShardedOptions& options,
                                   const Setup& setup)
    : DataParallelBase(
          std::move(module), group, data_parallel_options(options),
          {.store =
               [&](const torch::nn::Module& made) {
                 return setup.store(named_parameters(made), options);
               },
           .sink =
               [&](const parallel::ModuleReplica& replica, const parallel::SinkChoice& sinks) {
                 return setup.sink(replica, sinks, options);
               },
           .sink_needs_own_group = true,
           .stepping_group = setup.shard}),
      unit_patterns_(options.units),
      replicas_(setup.replicas),
      has_masters_(!setup.masters.empty()),
      is_there_(!setup.groups.rail && !options.offload),
      units_(static_cast<const UnitGradients&>(reducer_->sink()).units()) {}

FullyShardedBase::~FullyShardedBase() = default;

std::vector<std::vector<std::string>> FullyShardedBase::units() const {
  return units_->parameter_names();
}

std::shared_ptr<parallel::SteppedSlices> FullyShardedBase::slices_of(
    const std::vector<at::Tensor>& parameters) const {
  return std::make_shared<SlicesOfUnits>(parameters, units_);
}

void FullyShardedBase::with_gathered(const std::vector<std::string>& names,
                                     const std::function<void()>& use) {
  const NamedTensors all = named_parameters(replica());
  std::vector<at::Tensor> parameters;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all, name, &NamedTensors::value_type::first);
    require(found != all.end(),
            [&] { return "with_gathered: there is no parameter named " + name; });
    parameters.push_back(found->second);
  }
  units_->store().with_gathered(parameters, use);
}

void FullyShardedBase::with_gathered(const std::function<void()>& use) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(replica())) parameters.push_back(parameter);
  units_->store().with_gathered(parameters, use);
}

// With several copies, `change` runs in the first; others follow. After an exception, this rank
// still makes the calls for which others wait.
void FullyShardedBase::change_values(
    const std::function<void(const std::function<void()>& change)>& act,
    const std::function<void()>& change) {
  if (!replicas_ && !has_masters_) return act(change);
  std::exception_ptr error;
  try {
    act(!replicas_ || replicas_->rank() == 0 ? change : [] {});
  } catch (...) {
    error = std::current_exception();
  }
  try {
    if (replicas_)
      error = parallel::attempt_on_rank_0(*replicas_, "a change of parameters", [&] {
        if (error) std::rethrow_exception(error);
      });
    units_->follow_writes();
  } catch (const Error&) {  // If the group has ended, `error` has the reason.
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
}

parallel::FullyShardedModule FullyShardedBase::sharded_module() {
  return {.module = const_cast<torch::nn::Module&>(replica()),
          .units = units_,
          .has_values = [this] { return is_initialized(); },
          .loaded = [this] { replica_->note_values(); }};
}

std::unique_ptr<Stateful> FullyShardedBase::state() {
  if (!replicas_ && !has_masters_ && is_there_) return DataParallelBase::state();
  return parallel::fully_sharded_state(sharded_module());
}

std::unique_ptr<HeldTensors> FullyShardedBase::held_tensors() {
  return parallel::held_fragments(sharded_module());
}

}  // namespace lockstep
