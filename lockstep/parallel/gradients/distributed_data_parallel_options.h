// Options of DistributedDataParallel, and its reports about backward passes.
//
// Names and defaults are PyTorch's where it has the option. All ranks pass the same options.

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
  // The number of ranks, as in PyTorch. Correct if each rank's loss is a mean over the same number
  // of samples.
  over_ranks,
  // The number of samples or tokens that all ranks passed to
  // DistributedDataParallel::count_samples() since the last synchronised pass. Each loss is a sum
  // over its samples. Ranks may have different numbers of samples.
  over_samples,
};

// The reaction to an infinite or NaN gradient on any rank; the same on every rank. Gradients are
// checked before they are summed. Overflow in the sum, or in the type of a compressing
// communication hook, is not detected.
enum class NonFinite {
  // backward() throws Error(corrupt) with the parameter and the rank.
  fail,
  // All gradients become undefined, so the optimizer skips this pass. A warning is logged.
  skip,
  // The value spreads to all ranks, as in PyTorch. GradScaler (mixed_precision.h) finds it there.
  ignore,
};

struct DistributedDataParallelOptions {
  // Whether rank 0's buffers, such as the running mean of BatchNorm, are broadcast before each
  // forward(). Without it, buffers drift apart.
  bool broadcast_buffers = true;

  // Whether a backward pass may leave out parameters, different ones on each rank and in each pass.
  // If no rank uses a parameter, it keeps its gradient. If only some ranks use it, its gradient
  // counts as zero on the others. Without this option, such a pass is an Error with the parameters'
  // names.
  bool find_unused_parameters = false;

  // Promises that every pass uses the same parameters equally often. Parameters may then be unused
  // without find_unused_parameters, or used by several nested backward() calls, as in activation
  // checkpointing. The first pass defines the graph.
  bool static_graph = false;

  // MiB of a bucket of gradients; by default 25, and 1 for the first. Matters if buckets are
  // reduced during backward(): small buckets start early, large ones have less overhead.
  std::optional<double> bucket_cap_mb = {};
  // MiB of each bucket, in order; PyTorch's bucket_cap_mb_list.
  std::vector<double> bucket_caps_mb = {};

  // Whether a separate thread reduces buckets during backward(). By default true on CUDA devices,
  // across hosts, and on one host if each rank has a core that its intra-op threads do not need.
  // Without such a core, the thread costs backward() as much time as it saves. If false, all
  // buckets are reduced at the end of backward().
  std::optional<bool> overlap = {};

  // Whether backward() makes `.grad` a view of its bucket, which saves a second tensor and a copy.
  // Applies to gradients below 256 KB; to all with a communication hook or on a CUDA device. By
  // default `.grad` remains the tensor of autograd or of the program, and receives the mean.
  // The limits are PyTorch's. The next averaged pass overwrites the view. Clone a gradient that is
  // kept across zero_grad(); autograd throws if a graph has saved an overwritten one. If the
  // program assigns its own tensor to `.grad`, the next averaged pass replaces it by the view.
  bool gradient_as_bucket_view = false;

  // Whether the ranks of a host hold a single copy of the parameters. SharedOptimizer
  // (shared_optimizer.h) steps them: each rank sums and steps its slice, and no gather follows.
  // Other writes, for example loading weights, must use DistributedDataParallel::edit_parameters();
  // to() and set_data() are Errors. All ranks must be on one host, with parameters in CPU memory.
  // Communication hooks, overlap and join() are not supported.
  bool share_parameters = false;

  // Names of parameters with sparse gradients, for example those that forward() passes to
  // torch::embedding(). The weights of every torch::nn::Embedding and EmbeddingBag with
  // sparse(true) are included already. Ranks gather the elements of sparse gradients and add them
  // up. CPU memory only.
  std::vector<std::string> sparse_gradients = {};

  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;

  // Number of microbatches of a step's global batch, for train_microbatches(); 0 disables it.
  // train_microbatches() computes the same bits on every number of ranks that divides this number.
  // More microbatches allow more ranks, but each is smaller, so a step takes longer. CPU memory
  // only.
  int deterministic = 0;

  // Number of intra-op threads on every rank, set by torch::set_num_threads(). The bits depend on
  // it.
  int deterministic_threads = 1;

  // Seed of the random numbers drawn in train_microbatches(), for example by dropout.
  std::uint64_t deterministic_seed = 0;
};

// Options of DistributedDataParallel::join(), for ranks whose inputs end at different times. Names
// and defaults are those of PyTorch's Join.
struct JoinOptions {
  // Whether gradients are divided by the number of all ranks, also after some have joined. Every
  // sample then has the same weight. If false, by the number of active ranks.
  // GradientMean::over_samples always divides by the number of samples.
  bool divide_by_initial_world_size = true;

  // Whether all ranks throw Error(aborted) as soon as one rank has joined.
  bool throw_on_early_termination = false;
};

// --- Reports ------------------------------------------------------------------------------------

// The indices of each bucket's parameters, in their order in the bucket.
using BucketAssignment = std::vector<std::vector<std::size_t>>;

// A gradient with an infinity or a NaN. It was found before gradients were summed.
struct NonFiniteGradient {
  int rank;
  std::string parameter;
};

// Total time spent in averaged passes. On a CUDA device, times are those of enqueueing, and `wait`
// includes the wait for the device.
struct BackwardTimes {
  std::chrono::nanoseconds copy{};    // Copying into buckets.
  std::chrono::nanoseconds wait{};    // Waiting for other ranks or the reducing thread.
  std::chrono::nanoseconds reduce{};  // Summing; with overlap, during backward().
};

}  // namespace lockstep
