// What DistributedDataParallel is whatever the type of its module.
//
// Thread safety, Errors: as DistributedDataParallel's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/backward_report.h"
#include "lockstep/parallel/bucket_assignment.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/distributed_data_parallel_options.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class Join;
class Reducer;
class SharedOptimizerBase;
class SharedParameters;

class LOCKSTEP_API DataParallelBase {
 public:
  // While it lives, gradients accumulate on this rank alone: forward() calls made under it, and
  // their backward(), are not synchronised.
  class LOCKSTEP_API NoSync {
   public:
    NoSync(bool& synchronize, bool active);
    ~NoSync() { synchronize_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& synchronize_;
    const bool before_;
  };

  DataParallelBase(const DataParallelBase&) = delete;
  DataParallelBase& operator=(const DataParallelBase&) = delete;

  // `active`: whether it does anything, for loops such as
  //   const auto no_sync = ddp.no_sync(part + 1 < parts);  // Only the last pass communicates.
  [[nodiscard]] NoSync no_sync(bool active = true) { return {synchronize_, active}; }

  // Replaces the all_reduce of gradients. Collective. Errors: misuse after the first backward() that
  // was averaged, or when there is a hook already.
  void register_comm_hook(CommunicationHook hook);

  // With GradientMean::over_samples: the next loss is a sum over so many samples, or tokens. Zero is
  // fine as long as another rank has some. What was counted for a backward() that threw is forgotten.
  void count_samples(double samples);

  // Runs `train`, in which ranks may make different numbers of passes, because they have different
  // numbers of batches say; then gives all of them the weights, and with broadcast_buffers the
  // buffers, of the one that trained longest, the last of these. Collective. A rank that is done
  // takes part in the others' passes with nothing of its own, and has no gradients afterwards.
  // Nothing else that communicates, SyncBatchNorm say, may be in `train`.
  // Optimizers are the program's: that of a rank that was done early has made fewer steps. What it
  // remembers, momentum say, must be made equal before training goes on, or replicas drift apart.
  template <class Train>
  void join(Train&& train, const JoinOptions& options = {}) {
    const Joining joining(*this, options);
    std::forward<Train>(train)();
    follow_others();
  }

  // Runs `change` on rank 0, which may write to the module's parameters and buffers or load them,
  // while the others wait; all ranks have its values afterwards. The one way to change shared
  // parameters. Collective.
  // Errors: what `change` throws, on rank 0; aborted on the others then.
  void edit_parameters(const std::function<void()>& change);

  // Whether a rank was lost while shared parameters were stepped: some of them are a step ahead of
  // others then, and every forward() throws Error(corrupt). Load a checkpoint.
  bool has_torn_parameters() const;

  // Of the last backward pass that was averaged, unless NonFinite::ignore. The same on all ranks.
  const std::optional<NonFiniteGradient>& non_finite() const;

  // Indices of the parameters that are trained, in their order, by bucket. Changes after the first
  // pass, with static_graph the second.
  const BucketAssignment& bucket_assignment() const;

  BackwardTimes backward_times() const;

  // Registered memory in which gradients may lie after backward(): that of the buckets, which
  // SharedOptimizer has instead, and of the pool for large ones. None with one rank.
  std::vector<RegisteredMemory> gradient_memory() const;

  const torch::nn::Module& replica() const { return *replica_; }
  const ProcessGroup& group() const { return group_; }

  // Whether gradients are reduced during backward(), on a thread of their own.
  bool is_overlapped() const;

 protected:
  // Collective.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const DistributedDataParallelOptions& options);
  ~DataParallelBase();

  void before_forward();
  void watch(const at::Tensor& output);

 private:
  friend class SharedOptimizerBase;

  // Without a word to the other ranks when an exception ends it.
  class LOCKSTEP_API Joining {
   public:
    Joining(DataParallelBase& ddp, const JoinOptions& options);
    ~Joining();
    Joining(const Joining&) = delete;
    Joining& operator=(const Joining&) = delete;

   private:
    DataParallelBase& ddp_;
  };

  void follow_others();
  void broadcast_buffers();

  const std::shared_ptr<torch::nn::Module> replica_;
  const ProcessGroup group_;
  const DistributedDataParallelOptions options_;
  const std::shared_ptr<SharedParameters> shared_;  // Null without share_parameters.
  const std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Join> join_;
  bool synchronize_ = true;
  bool buffers_are_due_ = true;
};

}  // namespace lockstep
