// Data parallel training: backward() averages the gradients of a module over all ranks.
//
//   lockstep::DistributedDataParallel ddp(net, world);  // All ranks have rank 0's weights now.
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();  // Gradients are means over ranks.
//
// Semantics and buckets are those of torch.nn.parallel.DistributedDataParallel 2.13. Call the
// module itself where ranks must not synchronise, for example in an evaluation.
// docs/guide/data-parallel.md describes sparse gradients and later changes of the module.
// Thread safety: none; one training loop uses it.
// Errors: mismatch if the ranks' modules or options differ. misuse for experts that are cut over
// other ranks. unsupported for unexpected sparse gradients, types that cannot be averaged and
// gradients on several devices. Those of ProcessGroup.
// Errors of backward(), on all ranks; all gradients are then undefined. misuse, with the names, if
// parameters had no part in the loss or were changed. corrupt for non-finite gradients, see
// NonFinite. mismatch if ranks wrote to their weights differently, and the weights differ.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/job/step_times.h"
#include "lockstep/parallel/detail/forward_outputs.h"
#include "lockstep/parallel/deterministic/global_microbatch.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

class DataParallelState;
class DeterministicPass;
class Features;
class GradientNoise;
class GradientSink;
class HeldTensors;
class ModuleReplica;
class ParameterStore;
class RankStages;
class Reducer;
class SinkChoice;
class SteppedSlices;
enum class Feature : std::uint8_t;

}  // namespace lockstep::parallel

namespace lockstep {

class AveragedModel;
class NoiseScale;
class SharedOptimizerBase;
class WholeParameterOptimizer;

// The part of DistributedDataParallel that does not depend on the type of its module.
class LOCKSTEP_API DataParallelBase {
 public:
  // While it exists, gradients accumulate on this rank only: forward() calls and their backward()
  // are not synchronised.
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

  // Has no effect if `active` is false.
  //   const auto no_sync = ddp.no_sync(part + 1 < parts);  // Only the last pass communicates.
  [[nodiscard]] NoSync no_sync(bool active = true);

  // Collective: `hook` replaces the all_reduce of gradients.
  // Errors: misuse after the first averaged backward(), or if there is a hook already.
  void register_comm_hook(CommunicationHook hook);

  // Collective: stage 2 of ZeRO. A gradient is averaged only on the rank that steps its parameter;
  // on the others, `.grad` is undefined after backward(). `optimizer` has the same ranks; clip with
  // its clip_grad_norm_(). Before each averaged pass, gradients must be undefined (zero_grad()'s
  // default) or come from passes under no_sync(). join() is unsupported afterwards.
  // Errors: misuse after the first averaged backward(), and for parameters that the optimizer does
  // not step. unsupported with a communication hook, on a CUDA device, and if another
  // DistributedDataParallel has some of the parameters.
  void shard_gradients(WholeParameterOptimizer& optimizer);

  bool shards_gradients() const;

  bool has_gradient_views() const;

  // With GradientMean::over_samples: the number of samples or tokens of the next loss. It may be
  // zero if another rank has some. Counts are dropped if backward() throws.
  void count_samples(double samples);

  // Collective: runs `train`, in which ranks may make different numbers of passes. Finished ranks
  // take part in the others' passes without data; their gradients are then undefined. All ranks end
  // with the weights of the last rank that trained, and its buffers with broadcast_buffers. `train`
  // must not communicate otherwise, for example by SyncBatchNorm. Make optimizer states equal
  // before you continue training, because ranks took different numbers of steps.
  template <class Train>
  void join(Train&& train, const JoinOptions& options = {}) {
    join_others([&] { std::forward<Train>(train)(); }, options);
  }

  // Collective: runs `change` on rank 0, without gradients. It may write to parameters and buffers;
  // all ranks get the values. Besides the optimizer, nothing else may change shared parameters.
  // Blocking: the others wait for `change`, at most the timeout of the group's collectives.
  // Errors: the exception of `change` on rank 0, aborted on the others. Earlier changes take effect
  // on all ranks.
  virtual void edit_parameters(const std::function<void()>& change);

  // Collective: sets the values of a module made on the meta device (tensor/on_meta.h); forward()
  // throws before. Rank 0 calls `fill`, without gradients, for each parameter, then each buffer, in
  // the module's order and under its first name. `fill` writes to `tensor` or assigns one of the
  // same shape; otherwise the tensor is zero.
  // Blocking and Errors: as edit_parameters(); misuse if each rank has its own parameters.
  void initialize(const std::function<void(const std::string& name, at::Tensor& tensor)>& fill);

  // As above, with the values of the module that `make` returns, as a std::shared_ptr or a holder.
  // Rank 0 calls `make` twice, on meta first. The bits are those of an ordinary module with the
  // same seed. Errors: in addition, misuse with the tensors' names if the module differs.
  template <class Make>
    requires std::invocable<Make&>
  void initialize(Make&& make) {
    initialize_as([&make]() -> std::shared_ptr<torch::nn::Module> {
      const auto made = make();
      if constexpr (requires { made.ptr(); })
        return made.ptr();
      else
        return made;
    });
  }

  // Whether all tensors have values: by construction, initialize(), load_weights() or a checkpoint.
  bool is_initialized() const;

  bool shares_parameters() const;

  // Whether shared parameters are partially updated, because a rank was lost during a step. Every
  // forward() then throws Error(corrupt): load a checkpoint.
  bool has_partially_updated_parameters() const;
  [[deprecated("renamed to has_partially_updated_parameters()")]] bool has_torn_parameters() const {
    return has_partially_updated_parameters();
  }

  // Collective: the passes of one step, with the option `deterministic`. Calls `loss_of` for each
  // of this rank's microbatches, and backward() on the result. Each `.grad` becomes the mean over
  // all microbatches of all ranks. Returns the mean loss. Both have the same bits on every number
  // of ranks. docs/guide/shared-parameters.md has an example.
  // `step` counts the steps of the whole training, also after a resumption, and determines random
  // numbers. With GradientMean::over_samples, losses are sums, and `loss_of` calls count_samples().
  // Errors: those of backward(). unsupported, with its name, for a BatchNorm that would update
  // running statistics, and for a buffer that `loss_of` changes. unsupported for SyncBatchNorm in
  // training mode. misuse if the number of intra-op threads is not deterministic_threads. mismatch
  // if ranks are in different steps. All gradients are then undefined.
  double train_microbatches(std::int64_t step, const MicrobatchLoss& loss_of);
  [[deprecated("renamed to train_microbatches()")]] double train_pieces(
      std::int64_t step, const MicrobatchLoss& loss_of) {
    return train_microbatches(step, loss_of);
  }

  // The option `deterministic`. If it is not zero, nothing may change buffers, which are not
  // broadcast.
  int microbatches() const;

  // The first one of the last averaged pass, equal on all ranks. Empty with NonFinite::ignore.
  const std::optional<NonFiniteGradient>& non_finite() const;

  // Indices of the trained parameters, by bucket. Changes after the first pass; with static_graph,
  // after the second.
  const BucketAssignment& bucket_assignment() const;

  BackwardTimes backward_times() const;

  // Registered memory in which gradients may lie. Empty with one rank.
  std::vector<RegisteredMemory> gradient_memory() const;

  std::vector<at::Tensor> microbatch_memory() const;

  const torch::nn::Module& replica() const;
  const ProcessGroup& group() const;

  bool is_overlapped() const;

 protected:
  // Factories of a derived class.
  struct Makers {
    std::function<std::shared_ptr<parallel::ParameterStore>(const torch::nn::Module& module)> store;

    // The destination of gradients.
    std::function<std::unique_ptr<parallel::GradientSink>(const parallel::ModuleReplica& replica,
                                                          const parallel::SinkChoice& sinks)>
        sink;
  };

  // Collective.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const DistributedDataParallelOptions& options, const Makers& makers = {});
  virtual ~DataParallelBase();

  // Collective: `change` sets the values on rank 0.
  virtual void initialize_by(const std::function<void()>& change);

  const parallel::GradientSink& sink() const;

  template <class Module, class... Arguments>
  decltype(auto) call(Module& module, Arguments&&... arguments) {
    const Forward forward(*this);
    using Output = decltype(module.forward(std::forward<Arguments>(arguments)...));
    if constexpr (std::is_void_v<Output>) {
      module.forward(std::forward<Arguments>(arguments)...);
    } else {
      Output output = module.forward(std::forward<Arguments>(arguments)...);
      auto visit = [this](const at::Tensor& tensor) { watch(tensor); };
      visit_tensors(output, visit);
      return output;
    }
  }

 private:
  friend class AveragedModel;
  friend class NoiseScale;
  friend class SharedOptimizerBase;
  friend LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                               std::function<at::Tensor()> closure);
  friend LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);
  friend class parallel::DataParallelState;
  friend class parallel::RankStages;

  void initialize_as(const std::function<std::shared_ptr<torch::nn::Module>()>& make);

  class LOCKSTEP_API Forward {
   public:
    explicit Forward(DataParallelBase& ddp);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    const InPhase phase_{StepPhase::forward};
    const parallel::ModuleReplica& replica_;
    const bool with_gradients_;
  };

  void watch(const at::Tensor& output);

  // Collective: the slices that SharedOptimizer steps; null to make them from each `.grad`.
  virtual std::shared_ptr<parallel::SteppedSlices> slices_of(
      const std::vector<at::Tensor>& parameters) const;

  // The ranks that together step each shared parameter.
  virtual const ProcessGroup& stepping_group() const { return group(); }

  // Not collective.
  virtual std::unique_ptr<parallel::HeldTensors> held_tensors();

  // Measures while `noise` exists. Errors: as NoiseScale's constructor.
  void measure(const std::shared_ptr<parallel::GradientNoise>& noise);

  // The state of a derived class that splits parameters; null for whole ones. It calls `loaded`
  // once all parameters have values.
  virtual std::unique_ptr<Stateful> state_of_parts(const std::function<void()>& loaded);

  // Errors: if the options or an earlier call exclude `feature`.
  void require_allowed(parallel::Feature feature);
  void join_others(const std::function<void()>& train, const JoinOptions& options);

  const std::unique_ptr<parallel::Features> features_;
  const std::unique_ptr<parallel::ModuleReplica> replica_;
  const std::unique_ptr<parallel::SinkChoice> sinks_;
  const std::unique_ptr<parallel::Reducer> reducer_;
  const std::unique_ptr<parallel::DeterministicPass> microbatches_;  // Null unless deterministic.
  bool synchronize_ = true;
};

// Calls forward() of a module, of a TorchScript module (lockstep/tensor/script_module.h), or of
// named tensors with any function (lockstep/tensor/function_module.h).
//
// Results: forward() may return tensors in nested tuples, pairs, ranges, maps and optionals. Other
// types need a function for_each_tensor(value, visit), found by argument-dependent lookup, that
// calls visit(tensor) for each tensor.
// Passes: every backward() that reaches the module's parameters is averaged, unless its forward()
// ran under no_sync(). All ranks must run equally many averaged passes. Every parameter that
// requires a gradient must take part, unless the options allow otherwise.
// Gradients: `.grad` remains the tensor of autograd or of the program. A process-wide allocator
// puts large gradients into registered memory, which lives as long as the tensor. Complex
// parameters are pairs of reals, also in communication hooks.
// Modules that share parameters may have a DistributedDataParallel each. Shared gradients are
// averaged once, in one backward() over both losses or in consecutive ones. All ranks call the two
// forward()s in the same order. Unsupported for such modules: share_parameters, deterministic,
// GradientMean::over_samples, shard_gradients() and join().
//
// Experts that parallelize_module() has cut over ranks (lockstep/nn/experts.h) have means as
// gradients after backward(). These are not checked for infinities and NaN, and kept when others
// become undefined. The group has all ranks of the experts and of their replicas. Unsupported with
// experts: GradientMean::over_samples, NonFinite::skip, share_parameters, deterministic,
// shard_gradients(), join() and edit_parameters().
//
// CUDA: all parameters may be on local_device(). Gradients are reduced there, on the thread's
// current stream or, with overlap (the default for several ranks), on another, for which
// backward()'s stream waits. Unless NonFinite::ignore is set, backward() waits for the device once.
// Unsupported on a device: share_parameters, deterministic, shard_gradients() and SyncBatchNorm.
// Exceptions in backward(): the rank waits until the others have reached the end of backward(),
// then throws. The others throw Error(aborted) with its text. All ranks drop the pass and may
// continue. If the others do not arrive within 5 s, or three times the longest pass if that is
// longer, the group is aborted. On a CUDA device, and before backward() has reached an output of
// forward(), the others detect only the end of this rank.
template <class Module>
class DistributedDataParallel : public DataParallelBase {
 public:
  // Collective: all ranks get rank 0's parameters and buffers.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DataParallelBase(module, group, options), module_(std::move(module)) {}

  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  DistributedDataParallel(const torch::jit::Module& script, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
    requires std::same_as<Module, ScriptModule>
      : DistributedDataParallel(std::make_shared<ScriptModule>(script), group, options) {}

  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return call(*module_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  const std::shared_ptr<Module> module_;
};

DistributedDataParallel(const torch::jit::Module& script, const ProcessGroup& group,
                        const DistributedDataParallelOptions& options = {})
    -> DistributedDataParallel<ScriptModule>;

// For an optimizer that calls a closure several times in a step, such as torch::optim::LBFGS
// (docs/guide/data-parallel.md). Returns a closure that calls `closure` and returns the mean of all
// ranks' losses. The averaged gradients are the gradient of this mean. With
// GradientMean::over_samples, the sum of the losses is divided by the samples of the last averaged
// pass.
// All ranks must call the result equally often. Lifetime: `ddp` outlives it.
// Errors, of the result: misuse for a loss of several elements, and within join().
LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                      std::function<at::Tensor()> closure);

// The state of the module, as module_state() (lockstep/tensor/module_state.h), including shared
// parameters. One rank reads each shared parameter.
// Lifetime: `ddp` outlives the result.
// Errors: in addition, misuse if the state of parameters without values is requested.
LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);

}  // namespace lockstep
