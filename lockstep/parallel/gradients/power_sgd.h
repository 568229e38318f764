// PowerSGD: sends each gradient as two thin matrices, whose product approximates its mean.
//
//   lockstep::PowerSGD power(world, {.matrix_approximation_rank = 4});
//   ddp.register_comm_hook(power.hook());
//   state.add("power_sgd", power);  // In a TrainingState, for a resumption.
//
// Method: Vogels, Karimireddy, Jaggi, PowerSGD (arXiv 1905.13727). Semantics, defaults and random
// numbers are those of PyTorch 2.13's powerSGD_hook
// (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py). For an approximation of rank r, a
// gradient of n rows and m columns is sent as n * r and m * r numbers. With r equal to n or m the
// result is the mean, up to rounding. Gradients that compression shortens little, such as those of
// biases, are averaged uncompressed.
//
// Thread safety: none; members are not called during backward().
// Errors: misuse for options out of range, and for a loaded state of another approximation rank,
// error feedback or warm start. mismatch if the options of ranks differ. unsupported, from
// backward(), for a parameter that is cut over ranks. The first pass after a load throws misuse,
// with the name, if a gradient has another shape than the loaded one, or is uncompressed now.

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
  // Rank of the approximation, at least 1. A higher rank costs bytes and time, and reduces the
  // error: try 1, 2, 4 and so on.
  std::int64_t matrix_approximation_rank = 1;

  // Passes before this one average gradients uncompressed, because early gradients tolerate no
  // error. A tenth of the training is a good first choice. At least 2 with error feedback or warm
  // start, because buckets, and with them the random numbers, are final from then on.
  std::int64_t start_step = 1000;

  // A gradient is compressed if this divides its size by more than `min_compression_rate`.
  double min_compression_rate = 2;

  // Whether each rank adds the error of its last approximation to its next gradient. Costs memory
  // for all compressed gradients. Without it, training rarely reaches the same accuracy.
  bool use_error_feedback = true;

  // Whether Q starts from the last step's Q instead of random numbers: a better approximation for
  // the same bytes.
  bool warm_start = true;

  // Added to each column's length in orthonormalisation, with a rank of up to 2 or half precision.
  double orthogonalization_epsilon = 0;

  std::uint32_t random_seed = 0;  // For the first Q.

  // Whether gradients of one shape in a bucket are multiplied in one call. Useful for many small
  // gradients. Changes the random numbers.
  bool batch_tensors_with_same_shape = false;
};

namespace parallel {
class PowerSGDHook;
}

// The hook's state and statistics.
//
// Matrices: rows of a gradient are its slices along dim 0, or along the dim with the largest stride
// in memory. Complex numbers are pairs of reals. Every rank orthonormalises P and multiplies P by Q
// itself. Replicas have the same bits if all ranks have the same processors and LibTorch; otherwise
// they may differ by rounding. DriftCheck (lockstep/observe/drift_check.h) detects this.
//
// Differences from PyTorch: without an epsilon, a gradient of zeros, or of a lower rank than r,
// causes no division by nearly zero. Rows of Q that it makes zero are drawn again, so that later
// gradients are not lost. 16-bit types are orthonormalised in float. Errors of uncompressed
// gradients are not kept, because their mean over the ranks is zero. An infinity or a NaN affects
// one pass only: errors and Q of its bucket are reset.
//
// NonFinite::skip, a GradScaler or an exception may drop a pass's gradients. The pass has then
// already changed errors and Q of its other buckets, as in PyTorch: errors lack the gradients that
// were sent.
//
// The state has, for each compressed gradient, the error of each rank, and Q. It is stored by
// gradient name, so buckets may differ when it is loaded. On n ranks, rank r continues the errors
// of ranks r, r + n, and so on. They are scaled to keep the mean over all ranks, which the next
// step corrects.
class LOCKSTEP_API PowerSGD : public Stateful {
 public:
  // Collective. `group` has the ranks of the DistributedDataParallel.
  explicit PowerSGD(const ProcessGroup& group, const PowerSGDOptions& options = {});
  ~PowerSGD() override;

  // For one DistributedDataParallel. Lifetime: the hook may outlive this object.
  CommunicationHook hook() const;

  // Elements of all gradients, divided by the elements sent. 1 before compression starts.
  double compression_rate() const;

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  const std::shared_ptr<parallel::PowerSGDHook> hook_;
};

}  // namespace lockstep
