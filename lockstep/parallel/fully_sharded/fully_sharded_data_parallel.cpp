// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"

#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/fully_sharded/unit_gradients.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/gradients/stopwatch.h"
#include "lockstep/parallel/replicate/module_replica.h"
#include "lockstep/parallel/replicate/replicas.h"

namespace lockstep {
namespace {

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

// Compares the options that DistributedDataParallel does not have.
void require_same_options(const FullyShardedOptions& options, const ProcessGroup& group) {
  std::string text = options.overlap ? (*options.overlap ? "overlap" : "no overlap") : "";
  for (const std::string& pattern : options.units) text += "\n" + pattern;
  parallel::require_same_lines(text, "the options of FullyShardedDataParallel", group);
}

// An optimizer's slices of its parameters. backward() has made the means already.
class SlicesOfUnits final : public parallel::SteppedSlices {
 public:
  SlicesOfUnits(const std::vector<at::Tensor>& parameters, std::shared_ptr<ShardedUnits> units,
                const ProcessGroup& group)
      : units_(std::move(units)), group_(group) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      indices_.push_back(units_->index_of(parameters[i]));
      for (auto& [shard, tensor] : units_->fragments_of(parameters[i])) {
        shards_.push_back({i, shard.begin, shard.end, shard.owner});
        if (tensor.defined()) fragments_.push_back(std::move(tensor));
      }
    }
    units_->add_stepper();
  }
  ~SlicesOfUnits() override { units_->remove_stepper(); }
  SlicesOfUnits(const SlicesOfUnits&) = delete;
  SlicesOfUnits& operator=(const SlicesOfUnits&) = delete;

  const std::vector<Shard>& shards() const override { return shards_; }
  const std::vector<at::Tensor>& fragments() const override { return fragments_; }

  void average(StepTimes& times) override {
    const parallel::Stopwatch watch(times.wait);
    group_.barrier({.label = "step of fully sharded parameters"});
    used_.clear();
    for (const auto& i : indices_) used_.push_back(i && units_->is_used(*i));
  }

  bool is_averaged() const override { return true; }
  const std::vector<bool>& used() const override { return used_; }

  // Other optimizers may step the other parameters.
  void forget() override {
    for (const at::Tensor& fragment : fragments_) fragment.mutable_grad().reset();
    for (const auto& i : indices_)
      if (i) units_->set_unused(*i);
  }

  std::vector<at::Tensor> memory() const override { return units_->memory(); }

 private:
  const std::shared_ptr<ShardedUnits> units_;
  const ProcessGroup group_;
  std::vector<std::optional<std::size_t>> indices_;  // By the optimizer's parameter.
  std::vector<Shard> shards_;
  std::vector<at::Tensor> fragments_;
  std::vector<bool> used_;
};

}  // namespace

FullyShardedBase::FullyShardedBase(std::shared_ptr<torch::nn::Module> module,
                                   const ProcessGroup& group, const FullyShardedOptions& options)
    : DataParallelBase(
          std::move(module), group, data_parallel_options(options),
          [&options](const parallel::ModuleReplica& replica, const parallel::SinkChoice& sinks) {
            require_same_options(options, sinks.group());
            const NamedTensors& parameters = sinks.parameters();
            const ProcessGroup own = sinks.group();
            auto units = std::make_shared<ShardedUnits>(
                parameters, parallel::units_of(parameters, options.units), replica.shared(), own);
            const UnitGradients::Settings settings{
                .overlapped =
                    parallel::agree_on_overlap({.overlap = options.overlap}, own, c10::kCPU),
                .check_finite = options.non_finite != NonFinite::ignore};
            return std::make_unique<UnitGradients>(parameters, std::move(units), own, settings);
          }),
      unit_patterns_(options.units),
      units_(static_cast<const UnitGradients&>(sink()).units()) {}

FullyShardedBase::~FullyShardedBase() = default;

std::vector<std::vector<std::string>> FullyShardedBase::units() const {
  return units_->parameter_names();
}

std::shared_ptr<parallel::SteppedSlices> FullyShardedBase::slices_of(
    const std::vector<at::Tensor>& parameters) const {
  return std::make_shared<SlicesOfUnits>(parameters, units_, group());
}

}  // namespace lockstep
