// An optimizer whose state is distributed: each rank steps its own shards of the parameters, with
// an internal optimizer of the user's type. Schedulers, zero_grad() and options work as usual.
//
// Archives are those of the plain optimizer, for any number of ranks: all ranks call
// consolidate_state_dict(), then rank 0 saves. To load, all ranks read the same archive. Rank 0,
// and each rank that loads, needs memory for the whole state; optimizer_state()
// (optimizer_stateful.h) avoids that.
//
// Param groups are fixed at construction and equal on all ranks. Thread safety: none.
// Errors: mismatch if the ranks' parameters differ; misuse for no parameters or for a parameter in
// two groups. Unsupported for LBFGS, which needs all parameters at once. Also for LARS and LAMB
// with fragments of parameters that are also cut over other ranks. Those of ProcessGroup. If the
// inner step() throws on one rank, the group is aborted and step() throws Error(aborted) on the
// others. An exception of a closure does not abort the group.

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

// A part of a parameter: elements [begin, end) in memory order, and the rank that steps them.
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

  // Like lockstep::clip_grad_norm_(), for ranks that have different parts of the gradients: total
  // is the norm of all ranks' gradient shards as one vector. Collective.
  // Errors: misuse for parameters that are cut over other ranks, a negative max_norm and a
  // norm_type that is not positive. Corrupt, on all ranks, if error_if_nonfinite is set and total
  // is not finite.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // The same for parameters of `module` that may be cut over other ranks (sharded_module.h). Also
  // collective over the group of each layout. Errors: also misuse for a parameter of another
  // module.
  double clip_grad_norm_(const torch::nn::Module& module, double max_norm, double norm_type = 2.0,
                         bool error_if_nonfinite = false);
  double clip_grad_norm_(const ModelPart& model, double max_norm, double norm_type,
                         bool error_if_nonfinite);

  // Gathers all state on rank `to`, which may then save() until the next step(). Collective.
  // Errors: as optimizer_state(); misuse for a rank that does not exist.
  void consolidate_state_dict(int to = 0);

  // Writes the archive of the plain optimizer. Errors: misuse unless consolidated on this rank
  // since the last step().
  void save(torch::serialize::OutputArchive& archive) const override;

  // Reads an archive of the plain optimizer or of save(), and keeps this rank's shards. The
  // archive's options replace the current ones.
  void load(torch::serialize::InputArchive& archive) override;

  // The optimizer over this rank's shards. Its options are those of the last step().
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
  // elements. `types`: the stepped tensors' types, by parameter, if they differ from the
  // parameters'.
  void set_shards(std::vector<Shard> shards, const std::vector<at::Tensor>& stepped,
                  std::vector<at::ScalarType> types = {});

  // Called around the step of the shards, without gradients, to exchange the other ranks' parts.
  // `have_met`: all ranks have reached this step, and none reads parameters any more.
  virtual void before_step(bool /*have_met*/) {}
  virtual void after_step() {}

  // Computes the gradients of this rank's shards, unless that is done.
  virtual void make_gradients();

  // The norm of all shards' gradients. May compute these gradients first.
  virtual double gradient_norm(double norm_type);

  // The tensors on this rank whose gradients step() uses or the program may read before. Computes
  // missing gradients: collective.
  virtual std::vector<at::Tensor> tensors_with_gradients();

  // Whether ranks have different gradients in these tensors.
  virtual bool has_gradients_apart() const { return true; }

  // Replaces a step, after tensors_with_gradients(): drops gradients that step() would use up.
  virtual void omit_step() {}

  // The sum of the norm_type-th powers of the gradients; for the infinity norm, their largest
  // absolute value.
  static double power_of_norm(const std::vector<at::Tensor>& tensors, double norm_type);
  static double norm_of(const std::vector<double>& powers, double norm_type);

  const ProcessGroup& group() const { return group_; }
  const std::vector<at::Tensor>& all_parameters() const { return all_parameters_; }
  const std::vector<at::Tensor>& stepped() const { return stepped_; }  // As passed to set_shards().

 private:
  double gradient_norm(const ModelPart& model, double norm_type);
  double clip(const std::function<double()>& norm, double max_norm, double norm_type,
              bool error_if_nonfinite);

  friend class OptimizerState;  // Reads and sets the state of own_shards_ (optimizer_stateful.h).
  friend class GradScaler;      // Unscales gradients (mixed_precision.h).

  void add_up_parts();
  void step_all(bool have_met);
  void step_shards(bool have_met);
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;
  torch::optim::OptimizerParamState* state_of(const at::Tensor& stepped) const;

  const Make make_;
  const ProcessGroup group_;
  std::vector<at::Tensor> all_parameters_;  // Over all groups.
  std::vector<std::size_t> group_of_;       // Indexed by parameter.
  std::vector<Shard> shards_;
  std::vector<Shard> own_shards_;
  std::vector<at::Tensor> stepped_;
  std::vector<at::ScalarType> types_;  // By parameter; empty if equal to the parameters' types.
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // Null unless consolidated on this rank.
};

}  // namespace lockstep
