// Mixed precision, as Python's torch.autocast and torch.amp.GradScaler (docs/guide/precision.md).
//
//   {
//     const lockstep::Autocast amp(torch::kCPU, torch::kBFloat16);
//     loss = loss_of(ddp(batch.data), batch.target);
//   }
//   loss.backward();  // For float16: scaler.scale(loss).backward(), scaler.step(adam), and
//   adam.step();      // scaler.update().

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

// While it exists, operators of this thread on `device` compute in `dtype` where that is faster and
// safe: products, convolutions and attention. Objects may be nested, and end in reverse order;
// `enabled` = false disables autocasting.
//
// Use it for forward() and the loss, not for the optimizer's step: casts of weights are kept until
// the outermost object ends.
//
// Thread safety: affects only its own thread.
// Errors: unsupported for a device without autocasting. If enabled, also for CUDA without a device,
// and for types other than bfloat16 and float16. A CPU that emulates float16 is refused, too: it
// takes 8 to 16 times as long as for float32.
class LOCKSTEP_API Autocast {
 public:
  // Default of `dtype`: the thread's type for this device, initially bfloat16 on a CPU and float16
  // on CUDA. `cache_enabled`: whether each weight is cast once; unchanged by default.
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
  double growth_factor = 2.0;           // After growth_interval steps in a row.
  double backoff_factor = 0.5;          // After gradients that are not finite.
  std::int64_t growth_interval = 2000;  // In calls of update().
  bool enabled = true;                  // If false, no loss is scaled and no step skipped.
};

// Scales losses, so that small gradients do not underflow, and skips steps whose gradients
// overflow. Scale, steps and state equal Python's.
//
// All ranks skip the same steps: their gradients are equal, or they exchange the result over
// `group`, or the group of a sharded optimizer. With DistributedDataParallel and
// ZeroRedundancyOptimizer, this needs NonFinite::ignore and, without shard_gradients(), equal
// gradients on all ranks. Cost: docs/guide/precision.md.
//
// If ranks have different parameters, as with tensor parallel layers, experts and pipelines, pass a
// `group` of these ranks. They unscale and step the same number of optimizers, in the same order.
// At least one calls scale(): in a pipeline, the rank with the loss.
//
// Thread safety: none. Blocking: unscale_() and step() wait for the device.
// Errors, if enabled: misuse for a growth_factor of at most 1, a backoff_factor of at least 1, and
// calls in an order that Python refuses. A rank that cannot unscale gradients aborts the groups
// whose ranks wait for it (`group`, a ShardedOptimizer's): they get Error(aborted).
class LOCKSTEP_API GradScaler : public Stateful {
 public:
  explicit GradScaler(const ProcessGroup& group = ProcessGroup::self(),
                      const GradScalerOptions& options = {});
  [[deprecated("pass a group")]] explicit GradScaler(const GradScalerOptions& options)
      : GradScaler(ProcessGroup::self(), options) {}
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(at::TensorList outputs);

  // Divides the optimizer's gradients by the scale and searches for infinities and NaN. Needed only
  // before code that reads or clips gradients: otherwise step() unscales them. Collective for a
  // ShardedOptimizer.
  // Errors: misuse for a second call before update(), for a call after step(), and for a float16
  // gradient. Also those of the optimizer's step(), because some optimizers compute their gradients
  // here.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Steps the optimizer, and returns true, if all gradients of all ranks are finite. Collective
  // like the optimizer's step(), and with a group.
  // Errors: as unscale_(); also misuse if no rank has a gradient.
  bool step(torch::optim::Optimizer& optimizer);

  // Lowers the scale if gradients were not finite; raises it after growth_interval other calls in a
  // row. Call once after the steps of all optimizers. Collective, like step(), for optimizers that
  // were only unscaled.
  // Errors: misuse if no optimizer with gradients was unscaled or stepped.
  void update();

  // Sets the scale. All ranks of the group must set the same. Errors: misuse before the first
  // scale(), if the group has one rank.
  void update(double new_scale);

  // 1 if disabled.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  std::int64_t get_growth_interval() const { return options_.growth_interval; }
  void set_growth_factor(double factor) { options_.growth_factor = factor; }
  void set_backoff_factor(double factor) { options_.backoff_factor = factor; }
  void set_growth_interval(std::int64_t interval) { options_.growth_interval = interval; }

  // Save after update(). Empty if disabled; a disabled scaler loads nothing.
  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };

  // Rising: the maximum over all ranks applies.
  enum class Found : std::uint8_t { no_gradient, finite, non_finite };

  struct Step {
    const torch::optim::Optimizer* optimizer;  // May dangle.
    std::optional<ProcessGroup> apart = {};    // Ranks with different gradients.
    Stage stage = Stage::ready;
    Found found = Found::no_gradient;  // This rank's, until all ranks agree.
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
  const std::optional<ProcessGroup> group_;  // Empty for one rank.
  bool has_scaled_ = false;                  // On any rank of the group.
  const at::Tensor scale_;                   // float32,
  const at::Tensor growth_tracker_;          // and int32: of one element each, in CPU memory.
  std::vector<Step> steps_;                  // In calling order, which is the same on all ranks.
};

}  // namespace lockstep
