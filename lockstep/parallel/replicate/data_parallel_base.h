// What DistributedDataParallel is whatever the type of its module.
//
// Thread safety, Errors: as DistributedDataParallel's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/backward_report.h"
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/pieces/piece.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class DeterministicPass;
class Join;
class Reducer;
class SharedOptimizerBase;
class SharedParameters;
class SinkChoice;
class WholeParameterOptimizer;

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
  [[nodiscard]] NoSync no_sync(bool active = true) {
    require_pass_of_its_own("no_sync()");
    return {synchronize_, active};
  }

  // Replaces the all_reduce of gradients. Collective. Errors: misuse after the first backward()
  // that was averaged, or when there is a hook already.
  void register_comm_hook(CommunicationHook hook);

  // Stage 2 of ZeRO: from the first backward() on, a gradient is averaged on the rank alone that
  // steps its parameter, as `optimizer` has it, and freed on the others, where `.grad` is undefined
  // after backward(). Buckets are reduced during backward(), on a thread of their own. Collective;
  // the optimizer was made with the same ranks.
  // Gradients must be undefined, zero_grad()'s default, before each pass that is averaged, but for
  // what passes under no_sync() left there. What looks at all gradients sees its rank's: they are
  // clipped by the optimizer's own clip_grad_norm_(). They are summed, then divided: on numbers of
  // ranks that are no powers of two a rounding apart from those of small parameters without this.
  // Errors: misuse after the first backward() that was averaged, and for parameters that the
  // optimizer does not step; unsupported with a communication hook, on a CUDA device, and when
  // another DistributedDataParallel has some of the parameters; join() is then unsupported.
  void shard_gradients(const WholeParameterOptimizer& optimizer);

  // Whether each gradient is on one rank alone.
  bool shards_gradients() const;

  // With GradientMean::over_samples: the next loss is a sum over so many samples, or tokens. Zero
  // is fine as long as another rank has some. What was counted for a backward() that threw is
  // forgotten.
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

  // Runs `change` on rank 0, without gradients, which may write to the module's parameters and
  // buffers or load them, while the others wait; all ranks have its values afterwards. The one way
  // to change shared parameters. Collective: the others wait no longer than for any collective of
  // the group.
  // Errors: what `change` throws, on rank 0; aborted on the others then. What it had changed by
  // then is changed on all.
  void edit_parameters(const std::function<void()>& change);

  // Whether all ranks have one copy of the parameters, the option share_parameters.
  bool shares_parameters() const { return shared_ != nullptr; }

  // Whether a rank was lost while shared parameters were stepped: some of them are a step ahead of
  // others then, and every forward() throws Error(corrupt). Load a checkpoint.
  bool has_torn_parameters() const;

  // One step's forward and backward passes, with the option `deterministic`: calls `loss_of` for
  // each piece of the global batch that is this rank's, runs backward() on what it returns, and
  // makes every `.grad` the mean over all pieces of all ranks; what `.grad` was before is dropped.
  // Returns the mean of all losses. Both are the same bits on all ranks, and on every number of
  // ranks.
  //   const double loss = ddp.train_pieces(step, [&](const lockstep::Piece& piece) {
  //     return torch::nll_loss(ddp(piece.of(batch.data)), piece.of(batch.target));
  //   });
  // `step` is the number of the step in the whole training, which goes on where it was resumed:
  // random numbers follow from it. With GradientMean::over_samples losses are sums, and `loss_of`
  // calls count_samples(). Collective.
  // Errors: unsupported, naming it, for a BatchNorm that would update running statistics, for
  // SyncBatchNorm in training mode, and for any buffer that `loss_of` changes; misuse when
  // the number of intra-op threads is not the promised one; mismatch when ranks are in different
  // steps; as backward(). All gradients are undefined then.
  double train_pieces(std::int64_t step, const PieceLoss& loss_of);

  // Whether train_pieces() is how it trains. Buffers are not broadcast then: nothing may change
  // them.
  bool is_deterministic() const { return options_.deterministic > 0; }

  // Of the last backward pass that was averaged, unless NonFinite::ignore. The same on all ranks.
  const std::optional<NonFiniteGradient>& non_finite() const;

  // Indices of the parameters that are trained, in their order, by bucket. Changes after the first
  // pass, with static_graph the second.
  const BucketAssignment& bucket_assignment() const;

  BackwardTimes backward_times() const;

  // Registered memory in which gradients may lie after backward(): that of the buckets, which
  // SharedOptimizer has instead, and of the pool for large ones. None with one rank.
  std::vector<RegisteredMemory> gradient_memory() const;

  // In which train_pieces() sums them.
  std::vector<at::Tensor> piece_memory() const;
  int pieces() const { return options_.deterministic; }

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

  std::shared_ptr<const std::int64_t> passes() const;

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
  void require_pass_of_its_own(const char* call) const;

  const std::shared_ptr<torch::nn::Module> replica_;
  const ProcessGroup group_;
  const DistributedDataParallelOptions options_;
  const std::shared_ptr<SharedParameters> shared_;  // Null without share_parameters.
  const std::unique_ptr<SinkChoice> sinks_;
  const std::unique_ptr<Reducer> reducer_;
  const std::unique_ptr<DeterministicPass> pieces_;  // None unless deterministic.
  std::unique_ptr<Join> join_;
  bool synchronize_ = true;
  bool buffers_are_due_ = true;
};

}  // namespace lockstep
