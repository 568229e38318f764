// An optimizer with distributed state: each rank steps its shards of the parameters, with an inner
// optimizer of the user's type. Schedulers, zero_grad() and options work as usual.
//
// Archives equal the plain optimizer's, on any number of ranks: all ranks call
// consolidate_state_dict(), then rank 0 saves. To load, all ranks read the same archive. Rank 0,
// and each loading rank, needs memory for the whole state; state_of() (optimizer_stateful.h)
// avoids that.
//
// Param groups are fixed at construction and equal on all ranks. Thread safety: none.
// Errors: mismatch for different parameters on ranks; misuse for no parameters or a parameter in
// two groups. Unsupported for LBFGS, which needs all parameters at once, and for LARS and LAMB over
// parts of parameters if tensor parallelism has cut any. Also ProcessGroup's. If the inner
// optimizer's step() throws on one rank, the group is aborted and step() throws Error(aborted) on
// the others. A closure's exception does not abort the group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct ModelPart;

// Elements [begin, end) of a parameter in memory order, and the rank that steps them.
struct Shard {
  std::size_t parameter = 0;  // Index over all param groups.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int owner = 0;
};

class LOCKSTEP_API ShardedOptimizer : public torch::optim::Optimizer {
 public:
  // Collective. Runs `closure` with gradients enabled.
  torch::Tensor step(LossClosure closure = nullptr) final;

  // Like lockstep::clip_grad_norm_(), but scales only this rank's gradient shards. Total is the
  // norm of all ranks' shards as one vector. Collective.
  // Errors: misuse for parameters that tensor parallelism has cut, a negative max_norm and a
  // norm_type that is not positive. Corrupt, on all ranks, if error_if_nonfinite is set and total
  // is not finite.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // The same for parameters of `module` that may be cut (sharded_module.h). Also collective over
  // the groups of their layouts. Errors: also misuse for a parameter of another module.
  double clip_grad_norm_(const torch::nn::Module& module, double max_norm, double norm_type = 2.0,
                         bool error_if_nonfinite = false);
  double clip_grad_norm_(const ModelPart& model, double max_norm, double norm_type,
                         bool error_if_nonfinite);

  // Gathers all state on rank `to`, for save(). Collective.
  // Errors: as state_of(); misuse for a rank that does not exist.
  void consolidate_state_dict(int to = 0);

  // Writes the plain optimizer's archive. Errors: misuse unless consolidated on this rank since the
  // last step().
  void save(torch::serialize::OutputArchive& archive) const override;

  // Reads the plain optimizer's archive, and keeps this rank's shards.
  // Replaces the options.
  void load(torch::serialize::InputArchive& archive) override;

  // Over this rank's shards, with the options of the last step().
  const torch::optim::Optimizer& local() const { return *local_; }

  const std::vector<Shard>& shards() const { return shards_; }

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  // Collective. `make` creates the user's optimizer over given tensors, with the same `defaults`.
  // Call set_shards() before any other member.
  ShardedOptimizer(const Groups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                   Make make, const ProcessGroup& group);

  // Call once. `shards` are equal on all ranks and cover each parameter. `stepped` are the leaves
  // for this rank's shards, in the same order: the parameter itself, or a flat view or copy of its
  // elements. `types`: of the stepped tensors, by parameter, if not the parameters'.
  void set_shards(std::vector<Shard> shards, const std::vector<at::Tensor>& stepped,
                  std::vector<at::ScalarType> types = {});

  // Called in no-grad mode before and after the shards' step, to exchange data with other ranks.
  // `have_met`: all ranks have reached this step, and no longer read parameters.
  virtual void before_step(bool /*have_met*/) {}
  virtual void after_step() {}

  // Computes the gradients of this rank's shards if necessary.
  virtual void make_gradients();

  // Norm of all shards' gradients. May compute them first.
  virtual double gradient_norm(double norm_type);

  // This rank's tensors whose gradients step() uses or the program may read before. Computes
  // missing gradients: collective.
  virtual std::vector<at::Tensor> tensors_with_gradients();

  // Whether tensors_with_gradients() have different gradients on ranks.
  virtual bool has_gradients_apart() const { return true; }

  // Replaces a step, after tensors_with_gradients(): drops gradients that step() would consume.
  virtual void omit_step() {}

  // Sum of the norm_type-th powers of the gradients; for the infinity norm, the largest absolute
  // value.
  static double power_of_norm(const std::vector<at::Tensor>& tensors, double norm_type);
  static double norm_of(const std::vector<double>& powers, double norm_type);

  const ProcessGroup& group() const { return group_; }
  const std::vector<at::Tensor>& all_parameters() const { return all_parameters_; }
  const std::vector<at::Tensor>& stepped() const { return stepped_; }  // As passed to set_shards().

 private:
  double gradient_norm(const ModelPart& model, double norm_type);
  double clip(const std::function<double()>& norm, double max_norm, double norm_type,
              bool error_if_nonfinite);

  friend class OptimizerState;  // See optimizer_stateful.h.
  friend class GradScaler;      // See mixed_precision.h.

  void add_up_parts();
  void step_all(bool have_met);
  void step_shards(bool have_met);
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;
  torch::optim::OptimizerParamState* state_of(const at::Tensor& stepped) const;

  const Make make_;
  const ProcessGroup group_;
  std::vector<at::Tensor> all_parameters_;  // Over all groups.
  std::vector<std::size_t> group_of_;       // By parameter.
  std::vector<Shard> shards_;
  std::vector<Shard> own_shards_;
  std::vector<at::Tensor> stepped_;
  std::vector<at::ScalarType> types_;  // By parameter; empty: the parameters' types.
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // Null unless consolidated on this rank.
};

}  // namespace lockstep
