// Training on slow networks: ranks take steps of their own, and synchronise their parameters every
// so many steps.
//
//   lockstep::ProcessGroup host = lockstep::host_group(world);
//   lockstep::DistributedDataParallel ddp(model, host);  // Or the plain module: each rank alone.
//   lockstep::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(4e-4));
//   lockstep::DiLoCo diloco(*model, adamw, world, {.sync_every = 100});
//   ...
//     loss.backward();  // Means over this host's ranks.
//     adamw.step();
//     diloco.step();    // Communicates in each hundredth step.
//
// Construction gives all ranks rank 0's parameters and buffers. A synchronisation makes trained
// parameters equal on all ranks of the group. Buffers become those of rank 0 with the last
// parameter. Means are over ranks: hosts with more ranks count more. The state of the optimizer
// stays each rank's own.
//
// The state, for checkpoints, takes the place of those of module and optimizer. Values that are
// equal on all ranks are saved once, a rank's own ones under its rank. With another number of
// ranks, or other ranks on a host, every rank continues with the optimizer of rank 0, because ranks
// that step together must be equal. For the same reason, such a state is refused unless it was
// in_sync() when saved.
//
// Thread safety: none; one training loop uses it.
// Blocking: step() blocks in a synchronisation only, until all ranks have come.
// Errors: mismatch, on all ranks, if modules or options differ, or ranks synchronise in different
// steps; misuse for options out of range, and for parameters that ranks of a host share;
// unsupported for parameters that are cut over ranks, and for sharded optimizers; those of
// ProcessGroup. Misuse, too, in a synchronisation, for a parameter that requires a gradient only
// since the construction, and for a state that other hosts have saved between synchronisations. An
// Error of a synchronisation changes nothing on this rank: it could be repeated.
// Lifetime: module and optimizer outlive it.

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

// Collective: the ranks of `group` on this host, those that share memory.
LOCKSTEP_API ProcessGroup host_group(const ProcessGroup& group);

// The common part: counts steps, and synchronises when one is due.
class LOCKSTEP_API LocalSteps : public Stateful {
 public:
  LocalSteps(const LocalSteps&) = delete;
  LocalSteps& operator=(const LocalSteps&) = delete;
  ~LocalSteps() override;

  // Call it after each step of the optimizer, on all ranks. Returns whether it synchronised.
  bool step();

  // Collective: synchronises all parameters now, for example after the last step or before a
  // checkpoint for other hosts. Does nothing if in_sync(). For DiLoCo it is an outer step of all
  // fragments but one that the last step() has synchronised, so it changes the training.
  void synchronize();

  std::int64_t steps() const { return steps_; }

  // Whether all parameters are equal on all ranks, because a synchronisation of all of them came
  // last. Checkpoints are smallest then.
  bool in_sync() const { return equal_.size() == parameters_.size(); }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 protected:
  // Collective. `options` are compared line by line; `name` is that of the class.
  LocalSteps(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
             const ProcessGroup& group, std::string name, const std::string& options);

  const NamedTensors& parameters() const { return parameters_; }  // The trained ones.

  // Parameters begin to end - 1.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;

    bool is_empty() const { return begin == end; }
    std::size_t size() const { return end - begin; }
  };

 private:
  // The parameters that step number `step`, counted from 0, synchronises.
  virtual Range due_after(std::int64_t step) const = 0;

  // A new tensor, to be averaged over ranks for this parameter.
  virtual at::Tensor contribution(std::size_t index) const = 0;

  // Writes the parameter. No Error can follow a first one.
  virtual void take_mean(std::size_t index, const at::Tensor& mean) = 0;

  void synchronize(const std::vector<Range>& ranges, const std::string& label);
  void require_all_known() const;
  Range equal_in(const StateDict& saved) const;

  torch::nn::Module& module_;
  const ProcessGroup group_;
  const std::string name_;
  std::string hosts_;  // By rank: the first one on its host.
  const NamedTensors parameters_;
  const std::unique_ptr<Stateful> module_state_;
  const std::unique_ptr<Stateful> optimizer_state_;
  std::int64_t steps_ = 0;
  Range equal_;  // Parameters that are equal on all ranks: those of the last call.
};

// --- Post-local SGD ------------------------------------------------------------------------------

struct LocalSGDOptions {
  // Steps from one mean of the parameters to the next. With SGD, also with momentum, and a period
  // of 1 the result is that of averaged gradients, up to rounding.
  std::int64_t period = 4;

  // Steps in which gradients are averaged over all ranks, if hook() is registered; parameters are
  // not averaged then. Early gradients change too fast for local steps.
  std::int64_t warmup_steps = 0;

  // Ranks over which hook() averages gradients after the warm-up: by default host_group(). All
  // ranks give one, or none does.
  std::optional<ProcessGroup> subgroup = {};
};

// Post-local SGD (Lin et al., arXiv 1808.07217): parameters become their mean over all ranks after
// the first step behind the warm-up, and then every `period` steps. These are PyTorch's
// PeriodicModelAverager and post_localSGD_hook, with one count of steps for both.
//
//   lockstep::DistributedDataParallel ddp(model, world);
//   lockstep::LocalSGD local(*model, sgd, world, {.period = 8, .warmup_steps = 500});
//   ddp.register_comm_hook(local.hook());
//
// After the warm-up such a pass still agrees with all ranks on a few bytes, and broadcasts buffers
// unless broadcast_buffers is false. To avoid both, let ranks step alone instead of registering the
// hook: const auto alone = ddp.no_sync(local.is_local());
class LOCKSTEP_API LocalSGD final : public LocalSteps {
 public:
  // Collective.
  LocalSGD(torch::nn::Module& module, torch::optim::Optimizer& optimizer, const ProcessGroup& group,
           const LocalSGDOptions& options = {});

  // For a DistributedDataParallel of all ranks: averages gradients over all of them in the warm-up,
  // over the subgroup afterwards. With means over samples, and with join(), gradients are scaled by
  // the samples and ranks of all, not of the subgroup: give all ranks as many.
  // Errors: those of the subgroup may take until its timeout to reach its other ranks.
  // Lifetime: this outlives the last backward().
  CommunicationHook hook() const;

  // Whether the warm-up is over.
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
  // Steps of the inner optimizer from one synchronisation of a parameter to the next. More steps
  // cost less time and let replicas drift further apart: 50 to 500 in the paper.
  std::int64_t sync_every = 100;

  // Number of parts of the model, equal in bytes as far as parameters allow, that are synchronised
  // in turn, evenly spread over `sync_every` steps, which it divides: shorter pauses, the same
  // bytes.
  std::int64_t fragments = 1;

  // The outer optimizer is SGD.
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  bool nesterov = true;
};

// DiLoCo (Douillard et al., arXiv 2311.08105): after `sync_every` steps of the inner optimizer, an
// outer SGD steps the parameters of the last synchronisation. Its gradient is the mean over ranks
// of how far they have come, as in torchft's local_sgd.py. Costs two more copies of the parameters.
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
  std::vector<at::Tensor> synced_;       // By parameter: values of its last synchronisation.
  std::vector<at::Tensor> momentum_;     // By parameter; undefined before the first.
};

}  // namespace lockstep
