// Gradual magnitude pruning: masks with a cubic schedule (Zhu and Gupta, 2017;
// docs/guide/pruning.md). The sparsity after step t is that of torch.ao.pruning.CubicSL.
//   final + (initial - final) * (1 - (t - begin) / (end - begin))^3
//
//   pruner.step(adam);  // After each adam.step().
//
// Every `every` steps from `begin`, and at `end`, new masks zero each parameter's smallest absolute
// values. In other steps, zeros stay. TrainingState::add("pruner", pruner) saves it.
// Lifetime: the model outlives it. Thread safety: none.
// Errors: as PruningMasks; misuse for sparsities outside [0, 1], or sparsities or steps in the
// wrong order.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"
#include "lockstep/toolkit/prune/pruning_masks.h"

namespace lockstep {

struct GradualPrunerOptions {
  double initial_sparsity = 0;
  double final_sparsity = 0.9;

  // Optimizer steps, from 1, of the first and last masks.
  std::int64_t begin = 0;  // 0: first at `every`, or `end` if earlier.
  std::int64_t end = 1;

  // Steps between masks. Each mask costs a search of all elements, and a broadcast of a byte per
  // element.
  std::int64_t every = 100;

  // Patterns, such as "features.*.weight". Empty: all parameters of two or more dimensions.
  std::vector<std::string> parameters = {};

  // Whether masks select the smallest values of all parameters together.
  bool global = false;
};

class LOCKSTEP_API GradualPruner final : public Stateful {
 public:
  GradualPruner(torch::nn::Module& model, const ProcessGroup& group,
                const GradualPrunerOptions& options);
  [[deprecated("pass a group")]] GradualPruner(torch::nn::Module& model,
                                               const GradualPrunerOptions& options)
      : GradualPruner(model, ProcessGroup::self(), options) {}

  // Collective when masks are renewed.
  void step(torch::optim::Optimizer& optimizer);

  // The schedule's, at the last step.
  double scheduled_sparsity() const;

  std::int64_t steps() const { return steps_; }
  const PruningMasks& masks() const { return masks_; }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  bool is_due() const;
  void renew_masks();

  const GradualPrunerOptions options_;
  std::vector<std::string> parameters_;
  PruningMasks masks_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
