// Training on slow networks: ranks take local steps, and periodically synchronise parameters
// (docs/guide/slow-networks.md).
//
//   lockstep::DistributedDataParallel ddp(model, lockstep::host_group(world));
//   lockstep::DiLoCo diloco(*model, adamw, world, {.sync_every = 100});
//   ...
//   diloco.step();  // After each adamw.step(). Communicates in each hundredth step.
//
// Thread safety: none.
// Lifetime: module and optimizer outlive the object.
// Blocking: constructors and synchronisations, until all ranks take part.
// Errors: mismatch, on all ranks, if modules, options or steps of synchronisation differ. misuse
// for options out of range and parameters that ranks share. unsupported for parameters cut over
// ranks and sharded optimizers. Also ProcessGroup's.
// A load throws misuse for a state saved between synchronisations with another placement of ranks
// on hosts. A synchronisation throws misuse for a parameter unfrozen or replaced after
// construction. An Error in a synchronisation changes nothing on this rank; the call may be
// repeated.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Collective: the ranks that share memory with this rank.
LOCKSTEP_API ProcessGroup host_group(const ProcessGroup& group);

// The common part of LocalSGD and DiLoCo. The constructor gives all ranks rank 0's parameters and
// buffers. A synchronisation makes some or all trained parameters equal on all ranks. If it
// includes the last parameter, all ranks also get rank 0's buffers. Means are over ranks, not
// hosts. Optimizer states stay separate.
//
// In checkpoints, the state replaces those of module and optimizer. If in_sync(), the module is
// saved once, otherwise for each rank, as always the optimizer's state. If the placement of ranks
// on hosts has changed, all ranks load rank 0's optimizer state: ranks that average their gradients
// need equal ones.
class LOCKSTEP_API LocalSteps : public Stateful {
 public:
  LocalSteps(const LocalSteps&) = delete;
  LocalSteps& operator=(const LocalSteps&) = delete;
  ~LocalSteps() override;

  // Call this on all ranks after each step of the optimizer. Returns whether it synchronised
  // parameters.
  bool step();

  // Collective: synchronises all parameters, as after the last step or before a checkpoint for
  // other hosts. Does nothing if in_sync(). For DiLoCo, this is an outer step of all fragments that
  // the last step() has not synchronised, so it changes the training.
  void synchronize();

  std::int64_t steps() const { return steps_; }

  // Whether the last step() or synchronize() made all parameters equal on all ranks; true before
  // them. Checkpoints are smallest then.
  bool in_sync() const { return equal_.size() == parameters_.size(); }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 protected:
  // Collective. Compares the ranks' `options` line by line.
  LocalSteps(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
             const ProcessGroup& group, std::string name, const std::string& options);

  const NamedTensors& parameters() const { return parameters_; }  // The trained ones.

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;

    bool is_empty() const { return begin == end; }
    std::size_t size() const { return end - begin; }
  };

 private:
  // The parameters to synchronise in step `step`, from 0.
  virtual Range due_after(std::int64_t step) const = 0;

  // A new tensor, to be averaged over ranks.
  virtual at::Tensor contribution(std::size_t index) const = 0;

  // Writes the parameter. Throws only in the first call of a synchronisation.
  virtual void take_mean(std::size_t index, const at::Tensor& mean) = 0;

  void synchronize(const std::vector<Range>& ranges, const std::string& label);
  void require_all_known() const;
  Range equal_in(const StateDict& saved) const;

  torch::nn::Module& module_;
  const ProcessGroup group_;
  const std::string name_;
  std::string hosts_;  // By rank: the first rank on its host.
  const NamedTensors parameters_;
  const std::unique_ptr<Stateful> module_state_;
  const std::unique_ptr<Stateful> optimizer_state_;
  std::int64_t steps_ = 0;
  Range equal_;  // Made equal on all ranks by the last call.
};

// --- Post-local SGD ------------------------------------------------------------------------------

struct LocalSGDOptions {
  // Steps between two means of the parameters. With SGD, 1 equals averaged gradients, up to
  // rounding.
  std::int64_t period = 4;

  // Steps in which hook(), which must be registered, averages gradients over all ranks. Early
  // gradients change too fast for local steps.
  std::int64_t warmup_steps = 0;

  // Ranks over which hook() averages after the warm-up; default: host_group(). All ranks or none
  // pass it.
  std::optional<ProcessGroup> subgroup = {};
};

// Post-local SGD (Lin et al., arXiv 1808.07217), as PyTorch's PeriodicModelAverager with
// post_localSGD_hook. Averages parameters after the first step that follows the warm-up, then every
// `period` steps.
//
// After the warm-up, a pass with hook() still exchanges a few bytes among all ranks, and broadcasts
// buffers unless broadcast_buffers is false. Passes under ddp.no_sync(local.is_local()) avoid both,
// and average no gradients.
class LOCKSTEP_API LocalSGD final : public LocalSteps {
 public:
  // Collective.
  LocalSGD(torch::nn::Module& module, torch::optim::Optimizer& optimizer, const ProcessGroup& group,
           const LocalSGDOptions& options = {});

  // For a DistributedDataParallel of all ranks: averages gradients over all ranks in the warm-up,
  // then over the subgroup. All ranks need equally many samples and passes, because
  // GradientMean::over_samples and join() scale gradients by counts of the whole group.
  // Errors: an Error of the subgroup may reach its other ranks only after the subgroup's timeout.
  // Lifetime: this object outlives the last backward().
  CommunicationHook hook() const;

  bool is_local() const { return steps() >= options_.warmup_steps; }

 private:
  Range due_after(std::int64_t step) const override;
  at::Tensor contribution(std::size_t index) const override;
  void take_mean(std::size_t index, const at::Tensor& mean) override;

  const LocalSGDOptions options_;
  const ProcessGroup subgroup_;
};

// --- DiLoCo --------------------------------------------------------------------------------------

struct DiLoCoOptions {
  // Inner steps between two synchronisations of a parameter; the paper uses 50 to 500. More let
  // replicas drift further apart.
  std::int64_t sync_every = 100;

  // Parts of the model, synchronised alternately; divides `sync_every`. More parts shorten pauses
  // and send the same bytes.
  std::int64_t fragments = 1;

  // The outer optimizer is SGD.
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  bool nesterov = true;
};

// DiLoCo (Douillard et al., arXiv 2311.08105), as in torchft's local_sgd.py. After `sync_every`
// inner steps, an outer SGD steps from the last synchronised parameters to the next. Its gradient
// is the mean over ranks of last synchronised minus current parameters. Memory: two more copies of
// the parameters.
class LOCKSTEP_API DiLoCo final : public LocalSteps {
 public:
  // Collective.
  DiLoCo(torch::nn::Module& module, torch::optim::Optimizer& inner, const ProcessGroup& group,
         const DiLoCoOptions& options = {});

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  Range due_after(std::int64_t step) const override;
  at::Tensor contribution(std::size_t index) const override;
  void take_mean(std::size_t index, const at::Tensor& mean) override;

  const DiLoCoOptions options_;
  const std::vector<std::size_t> ends_;  // By fragment: index behind its last parameter.
  std::vector<at::Tensor> synced_;       // By parameter: values at its last synchronisation.
  std::vector<at::Tensor> momentum_;     // By parameter; undefined before it is synchronised.
};

}  // namespace lockstep
