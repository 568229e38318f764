// Mixed precision: operators compute in bfloat16 or float16, weights and their gradients stay
// float32. After Python's torch.autocast and torch.amp.GradScaler.
//
//   for (auto& batch : *loader) {
//     adam.zero_grad();
//     torch::Tensor loss;
//     {
//       const lockstep::Autocast amp(torch::kCPU, torch::kBFloat16);
//       loss = torch::nn::functional::cross_entropy(ddp(batch.data), batch.target);
//     }
//     loss.backward();
//     adam.step();
//   }
//
// float16 has so small a range that gradients become zero. There, multiply the loss by a scale:
//   lockstep::GradScaler scaler;
//   ...
//     scaler.scale(loss).backward();
//     scaler.unscale_(adam);  // Only if code between backward() and step() reads the gradients.
//     lockstep::clip_grad_norm_(net->parameters(), 1.0);
//     scaler.step(adam);
//     scaler.update();

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// While it lives, operators of this thread on `device` compute in `dtype` where that is faster and
// safe: products, convolutions and attention; LibTorch casts their arguments. Objects may be
// nested, and end in the reverse order; one with `enabled` false switches autocasting off.
//
// Put it around forward() and the loss. backward() needs none, as each operator's gradient has the
// type of its result. The optimizer's step must be outside: casts of the weights are kept until the
// outermost object ends.
//
// Thread safety: it belongs to its thread. Other threads, such as a loader's, are not affected.
// Errors: unsupported for a device without autocasting, for CUDA without a CUDA device, for types
// other than bfloat16 and float16, and for float16 on a CPU that emulates it, which takes 8 to 16
// times as long as float32 (measured: a CNN and a GPT on Zen 4). Python's torch disables itself in
// most of these cases. Nothing is checked if `enabled` is false.
class LOCKSTEP_API Autocast {
 public:
  // Without `dtype`: the thread's for this device, at first bfloat16 on a CPU and float16 on CUDA.
  // `cache_enabled`: whether each weight is cast once; as it was if not given.
  explicit Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype = {},
                    bool enabled = true, std::optional<bool> cache_enabled = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType dtype_before_;
  const bool was_cache_enabled_;
};

// Names and defaults are Python's.
struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;           // Of the scale, after growth_interval steps in a row.
  double backoff_factor = 0.5;          // Of the scale, after an update() without a step.
  std::int64_t growth_interval = 2000;  // In calls of update().
  bool enabled = true;                  // If false, losses keep their scale and all steps are made.
};

// Scales losses, so that small gradients are not rounded to zero, and omits steps whose gradients
// overflow. Scale, steps and state equal those of Python's GradScaler.
//
// All ranks make the same steps. DistributedDataParallel's gradients are means, so all ranks have
// the same infinities; its option `non_finite` must be NonFinite::ignore. The same holds of
// ZeroRedundancyOptimizer, for which gradients must be equal on all ranks: others would make ranks
// decide differently, and their next collectives fail. With shard_gradients(), and with
// SharedOptimizer and FullyShardedOptimizer, each rank has a part of the means, and step()
// exchanges one byte. Where the step would begin with a barrier, the byte takes its place: with
// FullyShardedOptimizer, and with SharedOptimizer after clipping. Otherwise it is a collective of
// its own, because only the means tell whether a sum has overflowed. SharedOptimizer makes them
// after the reports that ranks exchange in backward(); with shard_gradients(), the reports could
// tell of them only after one more pass over all means, which takes longer.
//
// Where ranks have other parameters, as with tensor parallel layers, experts and pipelines, pass a
// `group` of these ranks: step() then asks all of them. All unscale and step the same number of
// optimizers, in the same order. One of them at least calls scale(): in a pipeline, the one that
// computes the loss.
//
// A TrainingState saves it: state.add("scaler", scaler). Values have Python's names.
//
// Thread safety: none; one training loop uses it.
// Blocking: unscale_() and step() wait for the device.
// Errors: misuse for a growth_factor of at most 1 or a backoff_factor of at least 1; and for calls
// in an order that Python refuses, too. If gradients cannot be unscaled on one rank, the group and
// that of the ShardedOptimizer are aborted: the other ranks get Error(aborted).
class LOCKSTEP_API GradScaler : public Stateful {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  explicit GradScaler(ProcessGroup group, const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // Returns `output` times the scale.
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(at::TensorList outputs);

  // Divides the gradients of the optimizer by the scale and looks for infinities and NaN. Once
  // between two calls of update(), before step(), which otherwise does it. Collective for a
  // ShardedOptimizer.
  // Errors: misuse for the second call, for a call after step(), and for a gradient of float16;
  // those of the optimizer's step(), as some make their gradients here.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Steps the optimizer if all gradients of all ranks are finite, and returns whether it did.
  // Collective as unscale_() and the optimizer's step(), and with a group.
  // Errors: in addition, misuse if no rank has a gradient, and for the second call before update().
  bool step(torch::optim::Optimizer& optimizer);

  // Lowers the scale if an optimizer was not stepped, and raises it after enough calls. Once after
  // the steps of all optimizers. Collective as step() for those that were only unscaled.
  // Errors: misuse if none was unscaled or stepped.
  void update();

  // Sets the scale, with a group to the same on all ranks. Errors: misuse before the first scale(),
  // without a group.
  void update(double new_scale);

  // 1 if it is not enabled.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  std::int64_t get_growth_interval() const { return options_.growth_interval; }
  void set_growth_factor(double factor) { options_.growth_factor = factor; }
  void set_backoff_factor(double factor) { options_.backoff_factor = factor; }
  void set_growth_interval(std::int64_t interval) { options_.growth_interval = interval; }

  // To be saved after update(). Empty if it is not enabled, and such a scaler loads nothing.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };

  // In rising order: the largest of all ranks counts.
  enum class Found : std::uint8_t { no_gradient, finite, non_finite };

  // An optimizer's, since the last update().
  struct Step {
    const torch::optim::Optimizer* optimizer;  // May be gone.
    std::optional<ProcessGroup> apart = {};    // Ranks with other gradients, of a ShardedOptimizer.
    Stage stage = Stage::ready;
    Found found = Found::no_gradient;  // Of this rank until all ranks agree.
  };

  struct Seen {
    Found found;
    bool has_scaled;
  };

  Step& step_of(const torch::optim::Optimizer& optimizer);
  void agree(Step& step, const char* function);
  void abort_groups(const Step& step, const std::string& error) const;
  void require_scaled(const char* function) const;
  Found unscale_gradients(const std::vector<at::Tensor>& tensors) const;

  GradScalerOptions options_;
  const std::optional<ProcessGroup> group_;
  bool has_scaled_ = false;          // This rank, or another one of the group.
  const at::Tensor scale_;           // float32,
  const at::Tensor growth_tracker_;  // and int32: of one element each, in CPU memory.
  std::vector<Step> steps_;          // In the order of the calls, the same on all ranks.
};

}  // namespace lockstep
