// Data parallel training: backward() averages the gradients of a module over all ranks.
//
//   lockstep::DistributedDataParallel ddp(net, world);
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();
//
// Semantics and buckets are those of torch.nn.parallel.DistributedDataParallel 2.13. Call the
// module itself where ranks must not synchronise, as in an evaluation. Guide:
// docs/guide/data-parallel.md.
// Thread safety: none.
// Errors: mismatch if the ranks' modules or options differ. misuse if the module has experts,
// unless the group consists of their ranks and replicas (lockstep/nn/experts.h). unsupported for
// unexpected sparse gradients, types that cannot be averaged and gradients on several devices. Also
// ProcessGroup's.
// Errors of backward(), on all ranks; all gradients are then undefined. misuse, with the names, if
// parameters were not in the loss, got too many gradients or changed since construction. corrupt
// for non-finite gradients, with NonFinite::fail. mismatch if ranks wrote different weights.

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
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

class Features;
class GradientNoise;
class GradientSink;
class ModuleReplica;
class ParameterStore;
class RankStages;
class Reducer;
class SinkChoice;
class SteppedSlices;
enum class Feature : std::uint8_t;

}  // namespace lockstep::parallel

namespace lockstep {

class HeldTensors;
class NoiseScale;
class SharedOptimizerBase;
class WholeParameterOptimizer;

struct DataParallelStats {
  // Whether a thread or a device reduces gradients during backward().
  bool is_overlapped = false;

  bool shards_gradients = false;    // After shard_gradients().
  bool has_gradient_views = false;  // With the option gradient_as_bucket_view.

  // Indices of the trained parameters. May change after the first pass; with static_graph, after
  // the second.
  BucketAssignment buckets = {};

  BackwardTimes times = {};

  // Registered memory in which gradients may lie; may be empty.
  std::vector<RegisteredMemory> gradient_memory = {};
};

// The members that all classes for data parallel training have, independent of the module's type.
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

  // With GradientMean::over_samples: the number of samples or tokens of the next loss. Zero is
  // allowed if another rank has some. Counts are dropped if backward() throws.
  void count_samples(double samples);

  // Collective: runs `change` on rank 0, under NoGradGuard. `change` may write to parameters and
  // buffers; all ranks get the values. Only `change` and the optimizer may write to shared
  // parameters.
  // Blocking: the others wait for `change`, at most the group's timeout.
  // Errors: the exception of `change` on rank 0, aborted on the others. Changes before the
  // exception take effect on all ranks.
  void edit_parameters(const std::function<void()>& change);

  // Collective: sets the values of a module on the meta device (tensor/on_meta.h); until then,
  // forward() throws. Rank 0 calls `fill`, under NoGradGuard, for each parameter, then each buffer,
  // in the module's order and under its first name. `fill` writes to `tensor` or assigns one of the
  // same shape. Tensors that `fill` leaves alone are zero.
  // Blocking and Errors: as edit_parameters(); misuse unless ranks share parameters.
  void initialize(const std::function<void(const std::string& name, at::Tensor& tensor)>& fill);

  // As above, with the values of the module that `make` returns, as a std::shared_ptr or a holder.
  // Rank 0 calls `make` twice, on meta first. The bits are those of an ordinary module with the
  // same seed. Errors: also misuse, with the tensors' names, if the module differs.
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

  // Whether an interrupted step or edit_parameters() may have changed only some shared parameters.
  // Every forward() then throws Error(corrupt): load a checkpoint.
  bool has_partially_updated_parameters() const;
  [[deprecated("renamed to has_partially_updated_parameters()")]] bool has_torn_parameters() const {
    return has_partially_updated_parameters();
  }

  // In the last averaged pass, equal on all ranks. Empty with NonFinite::ignore.
  const std::optional<NonFiniteGradient>& non_finite() const;

  DataParallelStats stats() const;
  [[deprecated("use stats().times")]] BackwardTimes backward_times() const { return stats().times; }
  [[deprecated("use stats().gradient_memory")]] std::vector<RegisteredMemory> gradient_memory()
      const {
    return stats().gradient_memory;
  }
  [[deprecated("use stats().is_overlapped")]] bool is_overlapped() const {
    return stats().is_overlapped;
  }

  const torch::nn::Module& replica() const;
  const ProcessGroup& group() const;

 protected:
  // Public in classes whose backward() averages. Has no effect if `active` is false.
  //   const auto no_sync = ddp.no_sync(part + 1 < parts);  // Only the last pass communicates.
  [[nodiscard]] NoSync no_sync(bool active = true);

  // Replacements by a derived class.
  struct Parts {
    std::function<std::shared_ptr<parallel::ParameterStore>(const torch::nn::Module& module)>
        store = {};
    std::function<std::unique_ptr<parallel::GradientSink>(const parallel::ModuleReplica& replica,
                                                          const parallel::SinkChoice& sinks)>
        sink = {};
    bool sink_needs_own_group = false;
    // The ranks that together step each shared parameter; default: all.
    std::optional<ProcessGroup> stepping_group = {};
    bool is_deterministic = false;
  };

  // Collective.
  DataParallelBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                   const DistributedDataParallelOptions& options, const Parts& parts);
  virtual ~DataParallelBase();

  // Collective: `act(change)` runs `change` on rank 0, which writes to parameters and buffers.
  virtual void change_values(const std::function<void(const std::function<void()>& change)>& act,
                             const std::function<void()>& change);

  // As state_of().
  virtual std::unique_ptr<Stateful> state();

  // Not collective.
  virtual std::unique_ptr<HeldTensors> held_tensors();

  // Collective: the slices that SharedOptimizer steps; null to make them from each `.grad`.
  virtual std::shared_ptr<parallel::SteppedSlices> slices_of(
      const std::vector<at::Tensor>& parameters) const;

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

  const std::unique_ptr<parallel::Features> features_;
  const std::unique_ptr<parallel::ModuleReplica> replica_;
  const std::unique_ptr<parallel::SinkChoice> sinks_;
  const std::unique_ptr<parallel::Reducer> reducer_;
  bool synchronize_ = true;

 private:
  friend class SharedOptimizerBase;
  friend class parallel::RankStages;
  friend LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                               std::function<at::Tensor()> closure);
  friend LOCKSTEP_API std::unique_ptr<Stateful> state_of(DataParallelBase& ddp);
  friend LOCKSTEP_API std::unique_ptr<HeldTensors> held_tensors_of(DataParallelBase& ddp);

  void initialize_by(const std::function<void()>& change);
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

  const ProcessGroup stepping_group_;
};

class LOCKSTEP_API DistributedDataParallelBase : public DataParallelBase {
 public:
  using DataParallelBase::no_sync;

  // Collective: `hook` replaces the all_reduce of gradients. Errors: misuse after the first
  // averaged backward() or with another hook; unsupported with sparse or shared parameters.
  void register_comm_hook(CommunicationHook hook);

  // Collective: stage 2 of ZeRO. A gradient is averaged only on the rank that steps its parameter;
  // on the others, `.grad` is undefined after backward(). `optimizer` has the same ranks; clip with
  // its clip_grad_norm_(). Before each averaged pass, gradients must be undefined (zero_grad()'s
  // default) or come from passes under no_sync().
  // Errors: misuse after the first averaged backward(), and for parameters that the optimizer does
  // not step. unsupported with hooks, bucket views, sparse gradients, NoiseScale, join(), CUDA, and
  // share_parameters.
  void shard_gradients(WholeParameterOptimizer& optimizer);

  // Collective: runs `train`, in which ranks may make different numbers of passes. Finished ranks
  // take part in the others' passes without data; on finished ranks, gradients are then undefined.
  // All ranks end with the weights and, with broadcast_buffers, the buffers of the last rank that
  // trained. `train` must not communicate otherwise, for example by SyncBatchNorm. Optimizer states
  // differ afterwards: make them equal before further training.
  template <class Train>
  void join(Train&& train, const JoinOptions& options = {}) {
    join_others([&] { std::forward<Train>(train)(); }, options);
  }

  [[deprecated("use stats().buckets")]] BucketAssignment bucket_assignment() const {
    return stats().buckets;
  }

 protected:
  // Collective.
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase() override;

 private:
  friend class NoiseScale;

  // Measures while `noise` exists. Errors: as NoiseScale's constructor.
  void measure(const std::shared_ptr<parallel::GradientNoise>& noise);

  // Errors: as Features::require_allowed().
  void require_allowed(parallel::Feature feature);
  void join_others(const std::function<void()>& train, const JoinOptions& options);
};

// Calls forward() of a module, of a TorchScript module (lockstep/tensor/script_module.h), or of
// named tensors with any function (lockstep/tensor/function_module.h).
//
// Results: tensors in nested tuples, pairs, ranges, maps and optionals. Other types need a function
// for_each_tensor() (lockstep/parallel/detail/forward_outputs.h).
// Passes: every backward() that reaches the module's parameters is averaged, unless its forward()
// ran under no_sync(). All ranks must run equally many averaged passes, except in join().
// Gradients: `.grad` remains the tensor that autograd or the program has set. A process-wide
// allocator puts large gradients into registered memory, which lives as long as the tensor. Complex
// gradients are averaged as pairs of reals. Modules with common parameters may have a
// DistributedDataParallel each. Only the one that ran forward() last averages common gradients, in
// one backward() over both losses or in consecutive ones. All ranks call the two forward()s in the
// same order. Unsupported for such modules: share_parameters, GradientMean::over_samples,
// shard_gradients() and join().
//
// Gradients of experts that parallelize_module() has cut over ranks (lockstep/nn/experts.h) are
// means after backward(). They are not checked for infinities and NaN, and are kept when others
// become undefined. Unsupported with experts: GradientMean::over_samples, NonFinite::skip,
// share_parameters, shard_gradients(), join() and edit_parameters().
//
// CUDA: all parameters may be on local_device(). Gradients are reduced there, on the thread's
// current stream or, with overlap, on another, for which backward()'s stream waits. Unless
// NonFinite::ignore is set, backward() waits for the device once. Unsupported there: SyncBatchNorm.
// Exceptions in backward(): the rank waits until the others have reached the end of backward(),
// then throws. The others throw Error(aborted) with the exception's text. All ranks drop the pass
// and may continue. If the others do not arrive within 5 s, or three times the longest pass if
// longer, the group is aborted. On a CUDA device, and before backward() has reached an output of
// forward(), the others detect no exception and wait for this rank.
template <class Module>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  // Collective: all ranks get rank 0's parameters and buffers.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(module, group, options), module_(std::move(module)) {}

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

// For optimizers that call a closure several times per step, such as torch::optim::LBFGS. Returns a
// closure that calls `closure` and returns the mean of all ranks' losses. The averaged gradients
// are the gradient of this mean. With GradientMean::over_samples, the sum of the losses is divided
// by the samples of the last averaged pass.
// All ranks must call the result equally often. Lifetime: `ddp` outlives the result.
// Errors of the result: misuse in join(), for a loss of several elements, and for over_samples if
// `closure` averaged no pass.
LOCKSTEP_API std::function<at::Tensor()> average_loss(DataParallelBase& ddp,
                                                      std::function<at::Tensor()> closure);

// The state of the module, as state_of(module) (lockstep/tensor/module_state.h), including shared
// parameters. Loading divides the reading of shared parameters among the ranks.
// Lifetime: `ddp` outlives the result.
// Errors: also misuse for saving tensors without values.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(DataParallelBase& ddp);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> data_parallel_state(
    DataParallelBase& ddp) {
  return state_of(ddp);
}

}  // namespace lockstep
