// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_options.h"
#include "lockstep/parallel/gradients/features.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/replicate/module_replica.h"
#include "lockstep/parallel/replicate/parameter_store.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/parallel/shared_parameters/sliced_in_step.h"

namespace lockstep {
namespace {

std::shared_ptr<parallel::ParameterStore> shared_parameters_of(
    const parallel::ModuleReplica& replica) {
  require(replica.shared() != nullptr,
          "SharedOptimizer: DistributedDataParallel was made without share_parameters");
  return replica.shared();
}

const ProcessGroup& require_exact_norms(const ProcessGroup& group, bool is_layerwise,
                                        bool is_deterministic) {
  if (is_layerwise && is_deterministic)
    throw Error(
        Fault::unsupported,
        "SharedOptimizer: with DeterministicDataParallel, LARS and LAMB would have norms whose "
        "bits depend on the number of ranks");
  return group;
}

// Each rank steps a part of every parameter.
void require_same_hyperparameters(const torch::optim::Optimizer& optimizer,
                                  const ProcessGroup& group) {
  std::string lines;
  for (const auto& [name, value] : hyperparameters_of(optimizer))
    lines += name + ' ' + value + '\n';
  parallel::require_same_lines(lines, "the options of SharedOptimizer", group);
}

}  // namespace

SharedOptimizerBase::SharedOptimizerBase(const DataParallelBase& ddp, const Groups& groups,
                                         std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                         Make make, bool is_layerwise)
    : ShardedOptimizer(groups, std::move(defaults), std::move(make),
                       require_exact_norms(ddp.stepping_group_, is_layerwise,
                                           ddp.features_->has(parallel::Feature::deterministic))),
      are_means_(ddp.features_->has(parallel::Feature::deterministic)),
      parameters_(shared_parameters_of(*ddp.replica_)),
      slices_(ddp.slices_of(all_parameters())) {
  if (slices_ == nullptr)  // `.grad` exists after backward().
    slices_ = std::make_shared<parallel::SlicedInStep>(
        all_parameters(), *parameters_, group(),
        parallel::SlicedInStep::Passes{.averaged = ddp.reducer_->agreement().passes(),
                                       .leave_means = are_means_});
  require_same_hyperparameters(*this, group());
  set_shards(slices_->shards(), slices_->fragments(), slices_->types());
}

SharedOptimizerBase::~SharedOptimizerBase() = default;

std::vector<at::Tensor> SharedOptimizerBase::gradient_memory() const { return slices_->memory(); }

void SharedOptimizerBase::average() {
  parameters_->require_intact();
  slices_->average();
}

// Once ranks have synchronised, all have checked parameters, and some already step them.
void SharedOptimizerBase::before_step(bool have_met) {
  if (!have_met) parameters_->require_intact();
  const bool have_averaged = slices_->average();
  if (!have_averaged && !have_met) group().barrier({.label = "step of shared parameters"});
  parameters_->begin_step();
}

void SharedOptimizerBase::after_step() {
  slices_->publish();
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < all_parameters().size(); ++i)
    if (slices_->used()[i]) written.push_back(all_parameters()[i]);
  slices_->forget();
  parameters_->finish_step(written, group(), "shared parameters are stepped");
}

void SharedOptimizerBase::zero_grad(bool set_to_none) {
  slices_->forget();
  ShardedOptimizer::zero_grad(set_to_none);
}

void SharedOptimizerBase::make_gradients() {
  require(!are_means_,
          "clip_grad_norm_: with DeterministicDataParallel, parameters cannot be cut over ranks");
  average();
}

std::vector<at::Tensor> SharedOptimizerBase::tensors_with_gradients() {
  if (are_means_) return all_parameters();
  average();
  return stepped();
}

// Otherwise a fully sharded module would add the next means to these.
void SharedOptimizerBase::omit_step() { slices_->forget(); }

// With all means, each rank computes the whole norm. With slices, its bits would depend on the
// number of ranks.
double SharedOptimizerBase::gradient_norm(double norm_type) {
  if (!are_means_) {
    average();
    return ShardedOptimizer::gradient_norm(norm_type);
  }
  require(!slices_->is_averaged(),
          "clip_grad_norm_: with DeterministicDataParallel, call it once per step");
  const double norm = norm_of({power_of_norm(all_parameters(), norm_type)}, norm_type);
  average();
  return norm;
}

}  // namespace lockstep
