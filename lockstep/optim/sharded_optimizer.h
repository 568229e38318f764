// An optimizer whose state is spread over the ranks: each steps its own shards of the parameters.
//
// It holds the user's param groups as any optimizer does, so that schedulers, zero_grad() and
// options work on it, and an optimizer of the user's type over this rank's shards alone.
//
// Its archives are the plain optimizer's: torch::load() takes them into torch::optim::Adam, say,
// and they go on at any number of ranks.
//   optimizer.consolidate_state_dict();                                  // All ranks.
//   if (world.rank() == 0) torch::save(optimizer, "adam.pt");
//   ...
//   torch::load(optimizer, "adam.pt");                                    // Every rank, the same.
// For the moment of it, consolidating takes one rank the whole state in memory, and loading every
// one. optimizer_state() (optimizer_stateful.h) takes neither.
//
// Param groups are those that it was made with, and the same on all ranks.
// Thread safety: none; one training loop uses it.
// Errors: mismatch when the ranks' parameters differ; misuse for no parameters or for one that is
// named twice; unsupported for LBFGS, which needs all of them at once; those of ProcessGroup. What
// the optimizer itself throws in step() on one rank aborts the group, so that the others' step()
// throws Error(aborted); what a closure throws does not.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/shard.h"

namespace lockstep {

class LOCKSTEP_API ShardedOptimizer : public torch::optim::Optimizer {
 public:
  // Collective. Runs `closure`, with gradients enabled, as any optimizer does.
  torch::Tensor step(LossClosure closure = nullptr) final;

  // Multiplies the gradients by min(1, max_norm / (total + 1e-6)), where total is the norm of all
  // ranks' shards of them taken as one vector, and returns it. A norm_type of infinity takes the
  // largest absolute value. Of gradients that each rank has its own part of, this and not
  // lockstep::clip_grad_norm_() is their norm. Collective.
  // Errors: misuse for a negative max_norm and a norm_type that is not positive; corrupt, on all
  // ranks, when error_if_nonfinite and total is not finite.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // Gathers all state on rank `to`, which may then save() until the next step(). Collective.
  // Errors: unsupported for optimizers but SGD, Adam, AdamW, Adagrad, RMSprop and what derives from
  // these; misuse for a rank that does not exist.
  void consolidate_state_dict(int to = 0);

  // What the plain optimizer writes. Errors: misuse unless consolidated on this rank since the last
  // step().
  void save(torch::serialize::OutputArchive& archive) const override;

  // Takes what the plain optimizer, or save(), has written, and keeps this rank's shards. Options
  // become the archive's.
  void load(torch::serialize::InputArchive& archive) override;

  // The optimizer over this rank's shards. Its options are those of the last step().
  const torch::optim::Optimizer& local() const { return *local_; }

  // Of all ranks.
  const std::vector<Shard>& shards() const { return shards_; }

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  // Collective. `make` makes the user's optimizer over some tensors; it has the same `defaults`.
  // Nothing else works before set_shards().
  ShardedOptimizer(const Groups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                   Make make, const ProcessGroup& group);

  // Once. `shards` are the same on all ranks; parameters may have several, which cover them.
  // `stepped` are the tensors that stand for this rank's, in their order: leaves, each the
  // parameter itself or a flat view of the shard's elements, with a gradient of its own.
  void set_shards(std::vector<Shard> shards, const std::vector<at::Tensor>& stepped);

  // Around the step of the shards, without gradients enabled: where the others' part is exchanged.
  virtual void before_step() {}
  virtual void after_step() {}

  // The norm of all shards' gradients, which it may have to make first.
  virtual double gradient_norm(double norm_type);

  // Of the gradients of `tensors`, the sum of the norm_type-th powers, or the largest absolute
  // value.
  static double power_of_norm(const std::vector<at::Tensor>& tensors, double norm_type);
  static double norm_of(const std::vector<double>& powers, double norm_type);

  const ProcessGroup& group() const { return group_; }
  const std::vector<at::Tensor>& all_parameters() const { return all_parameters_; }
  const std::vector<at::Tensor>& stepped() const { return stepped_; }  // As set_shards() was given.

 private:
  friend class OptimizerState;  // optimizer_stateful.h: reads and sets the state of own_shards_.

  void step_shards();
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;
  torch::optim::OptimizerParamState* state_of(const at::Tensor& stepped) const;

  const Make make_;
  const ProcessGroup group_;
  std::vector<at::Tensor> all_parameters_;  // Of all groups.
  std::vector<std::size_t> group_of_;       // By parameter.
  std::vector<Shard> shards_;
  std::vector<Shard> own_shards_;
  std::vector<at::Tensor> stepped_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // Null unless consolidated on this rank.
};

}  // namespace lockstep
