// PowerSGD: sends each gradient as two thin matrices, P and Q, whose product approximates its mean.
//
//   lockstep::PowerSGD power(world, {.matrix_approximation_rank = 4});
//   ddp.register_comm_hook(power.hook());
//   state.add("power_sgd", power);  // In a TrainingState, for a resumption.
//
// Method: Vogels, Karimireddy, Jaggi, PowerSGD (arXiv 1905.13727). Semantics, defaults and random
// numbers are those of PyTorch 2.13's powerSGD_hook
// (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py). With rank r, n * r and m * r
// numbers replace a gradient of n rows and m columns.
//
// Thread safety: none; do not call members during backward().
// Errors: mismatch if ranks' options differ. misuse for options out of range, and for a loaded
// state of another approximation rank, error feedback or warm start. unsupported, from backward(),
// for a parameter cut over ranks. The first pass after a load throws misuse, with the name, for a
// gradient of another shape or without compression.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Names are PyTorch's; `start_step` is its start_powerSGD_iter.
struct PowerSGDOptions {
  // At least 1. A higher rank costs bytes and time, and reduces errors.
  std::int64_t matrix_approximation_rank = 1;

  // Earlier passes do not compress (docs/guide/slow-networks.md). At least 2 with error feedback or
  // warm start, when buckets are final.
  std::int64_t start_step = 1000;

  // A gradient is compressed if this divides its size by more than `min_compression_rate`.
  double min_compression_rate = 2;

  // Whether each rank adds its last approximation's error to its next gradient. Without it,
  // accuracy suffers.
  bool use_error_feedback = true;

  // Whether Q starts from the last step's Q, which approximates better than random numbers.
  bool warm_start = true;

  // Added to each column's length in orthonormalisation, for approximation ranks 1 and 2.
  double orthogonalization_epsilon = 0;

  std::uint32_t random_seed = 0;  // For all random Qs.

  // Whether one call multiplies gradients of a shape, for many small ones. Changes random numbers.
  bool batch_tensors_with_same_shape = false;
};

namespace parallel {
class PowerSGDHook;
}

// The hook's state. The rows of a gradient's matrix are its slices along the dim with the largest
// stride. Every rank orthonormalises P and multiplies P by Q itself. Replicas therefore have equal
// bits only with the same processors and LibTorch; DriftCheck (lockstep/observe/drift_check.h)
// detects differences.
//
// Differences from PyTorch: gradients of zeros, or of a rank below r, cause no division by nearly
// zero. Zero columns of Q are drawn again, or later gradients would be lost. 16-bit types are
// orthonormalised in float. An infinity or a NaN resets errors and Q of its bucket.
//
// NonFinite::skip, a GradScaler or an exception may drop a pass after errors and Q have changed. As
// in PyTorch, errors then lack the sent gradients.
//
// A checkpoint has each rank's error and Q, by gradient name. On n ranks, rank r continues the
// errors of ranks r, r + n and so on, scaled to keep the mean.
class LOCKSTEP_API PowerSGD : public Stateful {
 public:
  // Collective. `group`: the ranks of the DistributedDataParallel.
  explicit PowerSGD(const ProcessGroup& group, const PowerSGDOptions& options = {});
  ~PowerSGD() override;

  // For one DistributedDataParallel. Lifetime: the hook may outlive this object.
  CommunicationHook hook() const;

  // Elements of gradients per element sent. 1 before compression starts.
  double compression_rate() const;

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  const std::shared_ptr<parallel::PowerSGDHook> hook_;
};

}  // namespace lockstep
