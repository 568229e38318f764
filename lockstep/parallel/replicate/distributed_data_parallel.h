// Keeps the same module equal on every rank by averaging gradients in backward().
//
//   auto net = std::make_shared<Net>();                     // any module with a forward()
//   lockstep::DistributedDataParallel ddp(net, world);      // everybody has rank 0's weights now
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();                                        // gradients are averages over ranks
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel 2.13. Construction broadcasts
// parameters and buffers from rank 0; forward() broadcasts buffers again. Gradients become their
// mean over the ranks, and buckets are PyTorch's. Parameter names gain no prefix: the module stays
// the user's own. Call it directly where nothing is to be synchronised, for example in an
// evaluation.
// After backward(), `.grad` is the tensor that autograd has made, or that the program has put
// there. Large ones lie in memory of this class, which lives as long as the tensor does: an
// allocator in front of LibTorch's own, for the whole process, makes large gradients there
// (lockstep/parallel/gradients/gradient_memory.h in the sources).
//
// A torch::jit::Module is a module, too (lockstep/tensor/script_module.h), and so is a list of
// named tensors with any function (lockstep/tensor/function_module.h).
//
// forward() may return tensors in tuples, pairs, ranges, maps and optionals, nested to any depth. A
// type of your own takes part if for_each_tensor(value, visit), found by argument-dependent lookup,
// calls visit(tensor) for each of its tensors.
//
// Every backward() that reaches the module's parameters is averaged, unless its forward() was under
// no_sync(). All ranks must run equally many of them. Calls to autograd::grad() on other tensors,
// and passes where every parameter is frozen, are not averaged: for example a GAN's discriminator
// in its generator's step. Every parameter that requires a gradient must take part, unless the
// options allow otherwise.
//
// Sparse gradients, those of an Embedding with sparse(true), are averaged as by PyTorch over Gloo:
// backward() leaves coalesced means (the option sparse_gradients).
//
// Complex parameters are averaged as pairs of reals; communication hooks see their buckets in that
// form.
//
// Two modules may share parameters, for example two heads on one encoder, and have a
// DistributedDataParallel each. Their gradients are averaged once, in one backward() over both
// losses or in one after the other. All ranks call the two forward()s in the same order. Neither
// may use share_parameters, deterministic or GradientMean::over_samples. shard_gradients() and
// join() are unsupported: use one DistributedDataParallel of a module that holds both.
//
// Experts that parallelize_module() has cut over ranks (lockstep/nn/experts.h) differ between
// ranks. They are broadcast to the ranks that have the same ones, and their gradients, which
// backward() makes means already, are left alone, also when other gradients become undefined;
// infinities and NaN are not looked for in them. The group has all ranks of the experts and of
// their replicas. GradientMean::over_samples, NonFinite::skip, share_parameters, deterministic,
// shard_gradients(), join() and edit_parameters() are unsupported then.
//
// CUDA: all parameters may be in the memory of this rank's CUDA device, local_device(). Gradients
// are then copied into buckets there and reduced in the order of the thread's current stream. With
// overlap, the default for several ranks, a stream of LibTorch's pool reduces them, and
// backward()'s stream waits for it. backward() waits for the device once, to learn whether
// gradients are finite; with NonFinite::ignore it does not wait. Not supported there:
// share_parameters, deterministic, shard_gradients(), SyncBatchNorm. Tested with a stand-in for the
// device, and not run on one yet.
//
// The module may change after construction as docs/guide/data-parallel.md says. A change that would
// let the replicas drift apart is an Error of the next averaged backward(): a parameter that
// requires a gradient only now, that was added, removed, replaced or tied, or that has another
// type, shape or device.
//
// Thread safety: none; one training loop uses it.
// Errors: mismatch if the ranks' modules or options differ; misuse for experts that are cut over
// other ranks; unsupported for sparse gradients that are not expected, for types that cannot be
// averaged and for gradients on several devices; those of ProcessGroup. backward() throws on all
// ranks: misuse, with the parameters' names, if some had no part in the loss, or were changed;
// corrupt for gradients that are not finite, see NonFinite; mismatch if ranks have made other
// writes to their weights since the last pass, and these differ. All gradients are undefined then.
//
// Foreign exceptions in backward(), for example from a gradient hook: on the throwing rank, the
// exception leaves backward() after the other ranks have reached the end of theirs. The others
// throw Error(aborted) with its text. All ranks drop the pass and may continue. If the other ranks
// do not arrive within 5 s, or three times the longest pass, they may be waiting elsewhere for this
// one, and the group is aborted with that text. Two kinds of exception become known only when their
// rank ends: one before backward() has reached an output of forward(), and one on a CUDA device.

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
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/pieces/piece.h"
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

  // If `active` is false, it does nothing, for loops such as
  //   const auto no_sync = ddp.no_sync(part + 1 < parts);  // Only the last pass communicates.
  [[nodiscard]] NoSync no_sync(bool active = true);

  // Collective: `hook` replaces the all_reduce of gradients. Errors: misuse after the first
  // backward() that was averaged, or if there is a hook already.
  void register_comm_hook(CommunicationHook hook);

  // Stage 2 of ZeRO. Collective, with an optimizer of the same ranks. From the first backward() on,
  // a gradient is averaged only on the rank that steps its parameter; on the others, `.grad` is
  // undefined after backward(). Buckets are reduced during backward(), on their own thread.
  // Gradients must be undefined, zero_grad()'s default, before each pass that is averaged; passes
  // under no_sync() may leave some. Clip with the optimizer's own clip_grad_norm_(), as code that
  // reads gradients sees its rank's only. Sums are divided at the end: if the number of ranks is no
  // power of two, gradients of small parameters differ by a rounding from those without this call.
  // Errors: misuse after the first backward() that was averaged, and for parameters that the
  // optimizer does not step; unsupported with a communication hook, on a CUDA device, and if
  // another DistributedDataParallel has some of the parameters; join() is then unsupported.
  void shard_gradients(WholeParameterOptimizer& optimizer);

  // Whether each gradient is on one rank alone.
  bool shards_gradients() const;

  // Whether small gradients are views of the buckets.
  bool has_gradient_views() const;

  // With GradientMean::over_samples: the next loss is a sum over so many samples, or tokens. May be
  // zero if another rank has some. Counts for a backward() that threw are forgotten.
  void count_samples(double samples);

  // Collective: runs `train`, in which ranks may make different numbers of passes, for example for
  // different numbers of batches. All ranks then get the weights, and with broadcast_buffers the
  // buffers, of the last rank that trained. A rank that is done takes part in the others' passes
  // without data and has no gradients afterwards. Nothing else in `train` may communicate, for
  // example SyncBatchNorm.
  // The optimizer of a rank that was done early has made fewer steps. Make its state, such as
  // momentum, equal before training goes on; otherwise replicas drift apart.
  template <class Train>
  void join(Train&& train, const JoinOptions& options = {}) {
    join_others([&] { std::forward<Train>(train)(); }, options);
  }

  // Collective: runs `change` on rank 0, without gradients. It may write to the module's parameters
  // and buffers or load them; all ranks get the values. The only way to change shared parameters.
  // Blocking: the others wait for `change`, at most as long as for any collective of the group.
  // Errors: the exception of `change` on rank 0, and aborted on the others. Changes made before it
  // are changes on all ranks.
  virtual void edit_parameters(const std::function<void()>& change);

  // Collective: gives values to a module that was made on the meta device (tensor/on_meta.h), which
  // forward() waits for. Calls `fill` on rank 0, without gradients, for each parameter and then
  // each buffer, in the module's order; one with several names comes once, under the first. It
  // writes to `tensor`, or assigns another one of the same shape; what it leaves alone is zero.
  // Blocking and Errors: as edit_parameters(); misuse if each rank has its own parameters.
  void initialize(const std::function<void(const std::string& name, at::Tensor& tensor)>& fill);

  // The values of the module that `make` makes, a std::shared_ptr or a holder. Rank 0 makes it
  // twice: on meta, and with each tensor in its place. Values equal those of an ordinary module
  // with the same seed, bit for bit. Errors: in addition, misuse, naming tensors, if it is another
  // module.
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

  // Whether all tensors have values: by initialize(), load_weights(), a checkpoint or from before.
  bool is_initialized() const;

  // Whether all ranks of a host have one copy of the parameters: the option share_parameters, and
  // FullyShardedDataParallel.
  bool shares_parameters() const;

  // Whether a rank was lost while shared parameters were stepped, so that some are a step ahead of
  // others. Every forward() then throws Error(corrupt): load a checkpoint.
  bool has_torn_parameters() const;

  // Collective: one step's forward and backward passes, with the option `deterministic`. Calls
  // `loss_of` for each of this rank's pieces of the global batch and backward() on its result.
  // Replaces every `.grad` by the mean over all pieces of all ranks. Returns the mean of all
  // losses. Both have the same bits on all ranks, and on every number of ranks.
  //   const double loss = ddp.train_pieces(step, [&](const lockstep::Piece& piece) {
  //     return torch::nll_loss(ddp(piece.of(batch.data)), piece.of(batch.target));
  //   });
  // `step` is the number of the step in the whole training, also after a resumption: random numbers
  // follow from it. With GradientMean::over_samples losses are sums, and `loss_of` calls
  // count_samples().
  // Errors: unsupported, with its name, for a BatchNorm that would update running statistics, for
  // SyncBatchNorm in training mode, and for a buffer that `loss_of` changes; misuse if the number
  // of intra-op threads is not the promised one; mismatch if ranks are in different steps; as
  // backward(). All gradients are undefined then.
  double train_pieces(std::int64_t step, const PieceLoss& loss_of);

  // The option `deterministic`: the number of pieces, or zero. With pieces, buffers are not
  // broadcast: nothing may change them.
  int pieces() const;

  // The first one in the last averaged backward pass, the same on all ranks. Empty with
  // NonFinite::ignore.
  const std::optional<NonFiniteGradient>& non_finite() const;

  // Indices of the trained parameters, by bucket. Changes after the first pass, with static_graph
  // after the second.
  const BucketAssignment& bucket_assignment() const;

  BackwardTimes backward_times() const;

  // Registered memory in which gradients may lie after backward(): of the buckets, which
  // SharedOptimizer has instead, and of the pool for large ones. Empty with one rank.
  std::vector<RegisteredMemory> gradient_memory() const;

  // Memory in which train_pieces() sums gradients.
  std::vector<at::Tensor> piece_memory() const;

  const torch::nn::Module& replica() const;
  const ProcessGroup& group() const;

  // Whether gradients are reduced during backward(), on their own thread.
  bool is_overlapped() const;

 protected:
  // How a class differs from what the options say.
  struct Makers {
    // The store of shared parameters (ModuleReplica).
    std::function<std::shared_ptr<parallel::ParameterStore>(const torch::nn::Module& module)> store;

    // Where gradients go, made of the replica and the parameters that require gradients.
    std::function<std::unique_ptr<parallel::GradientSink>(const parallel::ModuleReplica& replica,
                                                          const parallel::SinkChoice& sinks)>
        sink;
  };

  // Collective.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const DistributedDataParallelOptions& options, const Makers& makers = {});
  virtual ~DataParallelBase();

  // Collective: `change` gives values on rank 0.
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

  // A call of forward(), which may end with an exception.
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

  // Collective. The slices that SharedOptimizer steps; null where it makes them of each `.grad`.
  virtual std::shared_ptr<parallel::SteppedSlices> slices_of(
      const std::vector<at::Tensor>& parameters) const;

  // The ranks that together step each shared parameter once.
  virtual const ProcessGroup& stepping_group() const { return group(); }

  // Not collective. The parameters, or parts of them, that this rank holds.
  virtual std::unique_ptr<parallel::HeldTensors> held_tensors();

  // Measures gradients for as long as `noise` lives. Errors: as NoiseScale's constructor.
  void measure(const std::shared_ptr<parallel::GradientNoise>& noise);

  // The state of a class that has parameters in parts; null where the module has them. `loaded` is
  // to be called once all have values.
  virtual std::unique_ptr<Stateful> state_of_parts(const std::function<void()>& loaded);

  // Errors: if the options, or an earlier call, exclude `feature`.
  void require_allowed(parallel::Feature feature);
  void join_others(const std::function<void()>& train, const JoinOptions& options);

  const std::unique_ptr<parallel::Features> features_;
  const std::unique_ptr<parallel::ModuleReplica> replica_;
  const std::unique_ptr<parallel::SinkChoice> sinks_;
  const std::unique_ptr<parallel::Reducer> reducer_;
  const std::unique_ptr<parallel::DeterministicPass> pieces_;  // Null unless deterministic.
  bool synchronize_ = true;
};

template <class Module>
class DistributedDataParallel : public DataParallelBase {
 public:
  // Collective.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DataParallelBase(module, group, options), module_(std::move(module)) {}

  // Takes the holders that TORCH_MODULE makes, including torch::nn::Sequential.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // Takes a TorchScript module.
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
// Returns a closure that calls `closure` and returns the mean of all ranks' losses, whose gradient
// the averaged gradients are. The optimizer then takes the same decisions on all ranks. With
// GradientMean::over_samples, losses are sums, and their sum is divided by the number of samples of
// the last averaged pass.
// The result is collective: all ranks call it equally often. Lifetime: `ddp` outlives it.
// Errors, of the result: misuse for a loss of several elements, and within join().
LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                      std::function<at::Tensor()> closure);

// The state of the module, as that of module_state() (lockstep/tensor/module_state.h), also for
// shared parameters. Each of these is read once, by one of the ranks, to the place where it lies.
// Lifetime: `ddp` outlives the result.
// Errors: in addition, misuse if the state of parameters without values is asked for.
LOCKSTEP_API std::unique_ptr<Stateful> data_parallel_state(DataParallelBase& ddp);

}  // namespace lockstep
