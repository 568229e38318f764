// Training that continues when ranks die (docs/guide/survival.md). The others repeat the
// interrupted step, in the same processes. A process that replaces a lost rank receives a
// survivor's state.
//
//   lockstep::Survival survival([&](lockstep::ProcessGroup& world, lockstep::TrainingState& state)
//   {
//     ddp.emplace(net, world);  // A std::optional: made again for each group.
//     state.add("model", *ddp);
//     state.add("optimizer", sgd, *net);  // Module and optimizer persist.
//   });
//   while (survival.steps() < 1000)
//     survival.step([&] { sgd.zero_grad(), loss_of(*ddp).backward(); }, [&] { sgd.step(); });
//
// Start the program with `lockstep run --on-failure continue`.
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/training_state.h"

namespace lockstep {

// Checkpoints for a training of which each rank has only a part of the state, as in fully sharded
// training. After a change of the group, all ranks continue from the newest one.
struct SurvivalCheckpoints {
  std::filesystem::path directory;  // All ranks see the same folder.
  std::int64_t every = 100;         // Steps.
  int keep_last = 2;                // Checkpoints; 0: all.
};

class LOCKSTEP_API Survival {
 public:
  // Collective, for each new group. Makes all objects that depend on the group, such as
  // DistributedDataParallel, DistributedSampler and DataLoader, and adds the whole state. Samplers
  // and schedules may be made again: Survival restores their state afterwards.
  using Setup = std::function<void(ProcessGroup& world, TrainingState& state)>;

  // Collective: makes the first group and calls `setup`. In a joining process: waits for the end of
  // the current step, and receives the state. SIGTERM or SIGUSR1 ends this wait: has_left() is then
  // true, step() returns false, and `setup` was not called. Errors: unsupported, naming the part,
  // for a state of which each rank has only a part, as in fully sharded training. Those of
  // ElasticGroup, and of `setup` as in step().
  explicit Survival(Setup setup, const ElasticOptions& options = {});

  // The same for such a state. `setup` makes module and optimizer again, too. The constructor loads
  // the newest checkpoint; without one, it saves the state as step 0. step() saves every `every`
  // steps, and before a process joins or a rank leaves in order. After a death, steps since the
  // newest checkpoint are repeated: steps() decreases. Errors: misuse unless `every` is positive;
  // those of Checkpointer.
  Survival(Setup setup, SurvivalCheckpoints checkpoints, const ElasticOptions& options = {});

  // Leaves the group. At the end of the training, call finish() first.
  ~Survival();
  Survival(const Survival&) = delete;
  Survival& operator=(const Survival&) = delete;

  // Collective: one step. `compute` makes the gradients and may communicate. `apply` changes
  // parameters, optimizer, sampler and schedule. Without checkpoints, `apply` must not communicate,
  // and each step is applied on all ranks or on none.
  //
  // Without checkpoints, the ranks that remain after a loss call `apply` if all of them have
  // complete gradients. They make a new group and call `setup`. If they did not call `apply`, they
  // repeat `compute`. Before, they restore buffers, the default CPU generator, and parts up to
  // 64 KiB except modules and optimizers.
  //
  // False if SIGTERM or SIGUSR1 made this rank leave (ProcessGroup::on_preemption()).
  // Errors: those of `compute`, `setup` and `apply` except peer_lost, timeout and aborted; without
  // checkpoints, also these of `apply`. peer_lost if too few ranks are left. aborted if the others
  // continue without this rank, or after 30 changes without a completed step. unsupported as in the
  // constructor, in the second step.
  bool step(const std::function<void()>& compute, const std::function<void()>& apply);

  std::int64_t steps() const;

  // Whether this rank has left the group: end the process with exit_preempted.
  bool has_left() const;

  // step() may replace it.
  ProcessGroup& world();

  int changes() const;

  // Ranks, divided by those at the start: a factor for the learning rate if the global batch
  // changes with the number of ranks.
  double scale() const;

  // Reports the end of the training: no rank waits for this one any more. Processes that wait to
  // join end with Error(aborted).
  void finish();

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace lockstep
