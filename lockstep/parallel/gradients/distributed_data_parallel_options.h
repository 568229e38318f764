// Options and reports of DistributedDataParallel. Names and defaults are PyTorch's where it has the
// option.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The divisor of gradients.
enum class GradientMean {
  // The number of ranks, as in PyTorch. Correct if each rank's loss is a mean over equally many
  // samples.
  over_ranks,
  // The number of samples or tokens that all ranks passed to count_samples() since the last
  // synchronised pass. Each loss is a sum over its samples.
  over_samples,
};

// The reaction to an infinite or NaN gradient on any rank. Gradients are checked before summation:
// overflow in the sum, or in the type of a compressing hook, is not detected.
enum class NonFinite {
  // backward() throws Error(corrupt) with the parameter and the rank.
  fail,
  // All gradients become undefined, so the optimizer skips this pass. A warning is logged.
  skip,
  // As in PyTorch, the value spreads to all ranks, where GradScaler (mixed_precision.h) finds it.
  ignore,
};

struct DistributedDataParallelOptions {
  // Whether forward() first broadcasts rank 0's buffers, as in PyTorch. Otherwise they drift apart.
  bool broadcast_buffers = true;

  // Whether a pass may leave out parameters, different ones on each rank; otherwise this is an
  // Error. A parameter that no rank uses keeps its gradient. If some ranks use it, its gradient
  // counts as zero on the others.
  bool find_unused_parameters = false;

  // Promises that every pass uses the same parameters, equally often. Parameters may then be
  // unused, or used by nested backward() calls, as in activation checkpointing.
  bool static_graph = false;

  // MiB of a bucket; by default 25, and 1 for the first. Small buckets start early; large ones have
  // less overhead.
  std::optional<double> bucket_cap_mb = {};
  // PyTorch's bucket_cap_mb_list: MiB of each bucket, in order.
  std::vector<double> bucket_caps_mb = {};

  // Whether a separate thread reduces buckets during backward(). Default: for several ranks on CUDA
  // devices, on several hosts, or with an idle core each. Without one, the thread costs as much
  // time as it saves.
  std::optional<bool> overlap = {};

  // Whether `.grad` is a view of its bucket, which saves a tensor and a copy ("Bucket views" in
  // docs/guide/data-parallel.md). The next averaged pass overwrites it: clone a gradient to keep
  // it.
  bool gradient_as_bucket_view = false;

  // Whether a host's ranks hold all parameters only once. SharedOptimizer
  // (shared_optimizer.h) steps them. Other writes, to() and set_data() need edit_parameters(). On
  // one host only, in CPU memory, without hooks, overlap, bucket options, sparse gradients, join().
  bool share_parameters = false;

  // Names of parameters with sparse gradients, besides those of torch::nn::Embedding and
  // EmbeddingBag with sparse(true). CPU memory only.
  std::vector<std::string> sparse_gradients = {};

  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;
};

struct JoinOptions {
  // Whether gradients are divided by the number of all ranks, which gives every sample the same
  // weight, or of active ranks. No effect with GradientMean::over_samples.
  bool divide_by_initial_world_size = true;

  // Whether all ranks throw Error(aborted) once some, but not all, have joined.
  bool throw_on_early_termination = false;
};

// Indices of each bucket's parameters, in bucket order.
using BucketAssignment = std::vector<std::vector<std::size_t>>;

struct NonFiniteGradient {
  int rank;
  std::string parameter;
};

// Total time in averaged passes. On a CUDA device, `copy` and `reduce` only enqueue, and `wait`
// includes the wait for the device.
struct BackwardTimes {
  std::chrono::nanoseconds copy{};    // Copying into buckets.
  std::chrono::nanoseconds wait{};    // Waiting for other ranks or the reducing thread.
  std::chrono::nanoseconds reduce{};  // Summing; with overlap, during backward().
};

}  // namespace lockstep
