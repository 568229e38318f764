// Data parallel training: backward() averages the gradients of a module over all ranks.
//
//   auto net = std::make_shared<Net>();                     // any module with a forward()
//   lockstep::DistributedDataParallel ddp(net, world);      // everybody has rank 0's weights now
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();                                        // gradients are averages over ranks
//
// Semantics and buckets are those of torch.nn.parallel.DistributedDataParallel 2.13. The
// constructor broadcasts parameters and buffers from rank 0; forward() broadcasts buffers again.
// Parameter names gain no prefix. Call the module itself where nothing is to be synchronised, for
// example in an evaluation. docs/guide/data-parallel.md describes sparse gradients, later changes
// of the module and views.
//
// Thread safety: none; one training loop uses it.
// Errors: mismatch if the ranks' modules or options differ; misuse for experts that are cut over
// other ranks; unsupported for unexpected sparse gradients, for types that cannot be averaged and
// for gradients on several devices; those of ProcessGroup. backward() throws on all ranks, and all
// gradients are then undefined. It throws misuse, with the parameters' names, if some parameters
// had no part in the loss or were changed. It throws corrupt for gradients that are not finite, see
// NonFinite. It throws mismatch if ranks wrote to their weights differently since the last pass,
// and the weights differ.

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
  // While it exists, gradients accumulate on this rank only. forward() calls made under it, and
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

  // If `active` is false, NoSync has no effect. This suits loops such as
  //   const auto no_sync = ddp.no_sync(part + 1 < parts);  // Only the last pass communicates.
  [[nodiscard]] NoSync no_sync(bool active = true);

  // Collective: `hook` replaces the all_reduce of gradients.
  // Errors: misuse after the first averaged backward(), or if there is a hook already.
  void register_comm_hook(CommunicationHook hook);

  // Collective: stage 2 of ZeRO. `optimizer` has the same ranks. From the first backward() on, a
  // gradient is averaged only on the rank that steps its parameter. On the others, `.grad` is
  // undefined after backward(). A separate thread reduces buckets during backward().
  // Before each averaged pass, gradients must be undefined (zero_grad()'s default) or come from
  // passes under no_sync(). Clip with the optimizer's clip_grad_norm_(): a rank sees only its own
  // gradients. Sums are divided at the end. If the number of ranks is no power of two, gradients of
  // small parameters therefore differ by a rounding from those without this call.
  // join() is unsupported afterwards.
  // Errors: misuse after the first averaged backward(), and for parameters that the optimizer does
  // not step; unsupported with a communication hook, on a CUDA device, and if another
  // DistributedDataParallel has some of the parameters.
  void shard_gradients(WholeParameterOptimizer& optimizer);

  // Whether each gradient exists on one rank only.
  bool shards_gradients() const;

  // Whether small gradients are views of the buckets.
  bool has_gradient_views() const;

  // With GradientMean::over_samples: the number of samples or tokens that the next loss sums. May
  // be zero if another rank has some. Counts are dropped if backward() throws.
  void count_samples(double samples);

  // Collective: runs `train`, in which ranks may make different numbers of passes. All ranks then
  // get the weights of the last rank that trained, and its buffers with broadcast_buffers. A rank
  // that has finished takes part in the others' passes without data, and has no gradients
  // afterwards. Nothing else in `train` may communicate, for example SyncBatchNorm.
  // The optimizer of a rank that finished early has made fewer steps. Make its state, such as
  // momentum, equal before you continue training; otherwise replicas drift apart.
  template <class Train>
  void join(Train&& train, const JoinOptions& options = {}) {
    join_others([&] { std::forward<Train>(train)(); }, options);
  }

  // Collective: runs `change` on rank 0, without gradients. `change` may write to the module's
  // parameters and buffers or load them; all ranks get the values. This is the only way to change
  // shared parameters.
  // Blocking: the others wait for `change`, at most the timeout of the group's collectives.
  // Errors: the exception of `change` on rank 0, and aborted on the others. Changes made before the
  // exception take effect on all ranks.
  virtual void edit_parameters(const std::function<void()>& change);

  // Collective: sets the values of a module that was made on the meta device (tensor/on_meta.h).
  // forward() throws before this. Calls `fill` on rank 0, without gradients, for each parameter and
  // then each buffer, in the module's order. A tensor with several names comes once, under the
  // first. `fill` writes to `tensor`, or assigns another tensor of the same shape; otherwise the
  // tensor is zero.
  // Blocking and Errors: as edit_parameters(); misuse if each rank has its own parameters.
  void initialize(const std::function<void(const std::string& name, at::Tensor& tensor)>& fill);

  // Sets the values to those of the module that `make` returns, as a std::shared_ptr or a holder.
  // Rank 0 calls `make` twice: on meta, and with each tensor in its final memory. Values equal
  // those of an ordinary module with the same seed, bit for bit.
  // Errors: in addition, misuse with the tensors' names if the module differs.
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

  // Whether all tensors have values: from initialize(), load_weights(), a checkpoint or
  // construction.
  bool is_initialized() const;

  // Whether the ranks of a host share parameters: by the option share_parameters, or
  // FullyShardedDataParallel.
  bool shares_parameters() const;

  // Whether shared parameters are partially updated, because a rank was lost during a step. Every
  // forward() then throws Error(corrupt): load a checkpoint.
  bool has_partially_updated_parameters() const;
  [[deprecated("renamed to has_partially_updated_parameters()")]] bool has_torn_parameters() const {
    return has_partially_updated_parameters();
  }

  // Collective: the forward and backward passes of one step, with the option `deterministic`. Calls
  // `loss_of` for each of this rank's microbatches of the global batch, and backward() on its
  // result. Each `.grad` becomes the mean over all microbatches of all ranks. Returns the mean of
  // all losses. Both have the same bits on all ranks, and on every number of ranks.
  //   const double loss = ddp.train_microbatches(step, [&](const lockstep::GlobalMicrobatch&
  //   microbatch) {
  //     return torch::nll_loss(ddp(part.of(batch.data)), part.of(batch.target));
  //   });
  // `step` is the number of the step in the whole training, also after a resumption; it determines
  // the random numbers. With GradientMean::over_samples losses are sums, and `loss_of` calls
  // count_samples().
  // Errors: those of backward(). unsupported, with its name, for a BatchNorm that would update
  // running statistics, for SyncBatchNorm in training mode, and for a buffer that `loss_of`
  // changes. misuse if the number of intra-op threads is not deterministic_threads. mismatch if
  // ranks are in different steps. All gradients are undefined then.
  double train_microbatches(std::int64_t step, const MicrobatchLoss& loss_of);
  [[deprecated("renamed to train_microbatches()")]] double train_pieces(
      std::int64_t step, const MicrobatchLoss& loss_of) {
    return train_microbatches(step, loss_of);
  }

  // The option `deterministic`: the number of microbatches, or zero. If it is not zero, buffers are
  // not broadcast, and nothing may change them.
  int microbatches() const;

  // The first non-finite gradient of the last averaged backward pass, the same on all ranks. Empty
  // with NonFinite::ignore.
  const std::optional<NonFiniteGradient>& non_finite() const;

  // Indices of the trained parameters, by bucket. Changes after the first pass; with static_graph,
  // after the second.
  const BucketAssignment& bucket_assignment() const;

  BackwardTimes backward_times() const;

  // Registered memory in which gradients may lie after backward(): the buckets, which
  // SharedOptimizer has instead, and the pool for large gradients. Empty with one rank.
  std::vector<RegisteredMemory> gradient_memory() const;

  // Memory in which train_microbatches() sums gradients.
  std::vector<at::Tensor> microbatch_memory() const;

  const torch::nn::Module& replica() const;
  const ProcessGroup& group() const;

  // Whether a separate thread reduces gradients during backward().
  bool is_overlapped() const;

 protected:
  // The differences of a derived class from the options.
  struct Makers {
    // Makes the store of shared parameters (ModuleReplica).
    std::function<std::shared_ptr<parallel::ParameterStore>(const torch::nn::Module& module)> store;

    // Makes the destination of gradients, from the replica and the parameters that require
    // gradients.
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

  // Calls forward() of the `module`, with any arguments and result.
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

  // A call of forward(). It may end with an exception.
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

  // Collective. The slices that SharedOptimizer steps. Null if it makes the slices from each
  // `.grad`.
  virtual std::shared_ptr<parallel::SteppedSlices> slices_of(
      const std::vector<at::Tensor>& parameters) const;

  // The ranks that together step each shared parameter once.
  virtual const ProcessGroup& stepping_group() const { return group(); }

  // Not collective. The parameters, or parts of them, that this rank holds.
  virtual std::unique_ptr<parallel::HeldTensors> held_tensors();

  // Measures gradients while `noise` exists. Errors: as NoiseScale's constructor.
  void measure(const std::shared_ptr<parallel::GradientNoise>& noise);

  // The state of a derived class that splits parameters; null if the module has whole ones. The
  // state calls `loaded` once all parameters have values.
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

// Calls forward() of a module, also of a TorchScript module (lockstep/tensor/script_module.h) or of
// named tensors with any function (lockstep/tensor/function_module.h).
//
// Results: forward() may return tensors in tuples, pairs, ranges, maps and optionals, nested to any
// depth. A type of your own needs a function for_each_tensor(value, visit), found by
// argument-dependent lookup, that calls visit(tensor) for each of its tensors.
//
// Passes: every backward() that reaches the module's parameters is averaged, unless its forward()
// ran under no_sync(). All ranks must run equally many averaged passes. Calls to autograd::grad()
// on other tensors are not averaged. The same holds for passes in which every parameter is frozen,
// for example of a GAN's discriminator in its generator's step. Every parameter that requires a
// gradient must take part, unless the options allow otherwise.
//
// Gradients: after backward(), `.grad` is the tensor that autograd has made or the program has
// assigned. An allocator in front of LibTorch's, for the whole process, puts large gradients into
// registered memory, which lives as long as the tensor
// (lockstep/parallel/gradients/gradient_memory.h). Complex parameters are averaged as pairs of
// reals; communication hooks receive these pairs.
//
// Two modules may share parameters, for example two heads on one encoder, and have a
// DistributedDataParallel each. Shared gradients are averaged once, in one backward() over both
// losses or in consecutive ones. All ranks call the two forward()s in the same order.
// share_parameters, deterministic, GradientMean::over_samples, shard_gradients() and join() are
// unsupported: use one DistributedDataParallel of a module that holds both.
//
// Experts that parallelize_module() has cut over ranks (lockstep/nn/experts.h) are broadcast only
// to the ranks that have the same experts. Their gradients are means already after backward(). They
// are not averaged again, not checked for infinities and NaN, and kept when other gradients become
// undefined. The group has all ranks of the experts and of their replicas.
// GradientMean::over_samples, NonFinite::skip, share_parameters, deterministic, shard_gradients(),
// join() and edit_parameters() are unsupported with experts.
//
// CUDA: all parameters may be on this rank's device, local_device(). Gradients are copied into
// buckets there and reduced in the order of the thread's current stream. With overlap, the default
// for several ranks, a stream of LibTorch's pool reduces them, and backward()'s stream waits for
// it. Unless NonFinite::ignore is set, backward() waits for the device once, to check that
// gradients are finite. share_parameters, deterministic, shard_gradients() and SyncBatchNorm are
// unsupported. Tested with a stand-in for the device, not on a real one yet.
//
// Exceptions in backward(), for example of a gradient hook: the throwing rank waits until the other
// ranks have reached the end of backward(). Then the exception leaves its backward(). The others
// throw Error(aborted) with its text. All ranks drop the pass and may continue. If the other ranks
// do not arrive within 5 s, or three times the longest pass, they may wait elsewhere for this rank.
// The group is then aborted with that text. Two kinds of exception reach the others only when this
// rank ends: before backward() has reached an output of forward(), and on a CUDA device.
template <class Module>
class DistributedDataParallel : public DataParallelBase {
 public:
  // Collective.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DataParallelBase(module, group, options), module_(std::move(module)) {}

  // Accepts the holders that TORCH_MODULE makes, including torch::nn::Sequential.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // Accepts a TorchScript module.
  DistributedDataParallel(const torch::jit::Module& script, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
    requires std::same_as<Module, ScriptModule>
      : DistributedDataParallel(std::make_shared<ScriptModule>(script), group, options) {}

  // Calls the module's own forward(), with any arguments and result.
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

// For an optimizer that calls a closure several times in a step, such as torch::optim::LBFGS:
//   lbfgs.step(lockstep::average_loss(ddp, [&] {
//     lbfgs.zero_grad();
//     const torch::Tensor loss = loss_of(ddp(batch.data), batch.target);
//     loss.backward();
//     return loss;
//   }));
// Returns a closure that calls `closure` and returns the mean of all ranks' losses. The averaged
// gradients are the gradient of this mean, so the optimizer takes the same decisions on all ranks.
// With GradientMean::over_samples, losses are sums, and their sum is divided by the number of
// samples of the last averaged pass.
// The result is collective: all ranks must call it equally often. Lifetime: `ddp` outlives it.
// Errors, of the result: misuse for a loss of several elements, and within join().
LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                      std::function<at::Tensor()> closure);

// The state of the module, as module_state() (lockstep/tensor/module_state.h), including shared
// parameters. One rank reads each shared parameter, directly into its memory.
// Lifetime: `ddp` outlives the result.
// Errors: in addition, misuse if the state of parameters without values is requested.
LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);

}  // namespace lockstep
