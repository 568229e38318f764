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
  // The number of ranks, as in PyTorch. Correct if each rank's loss is a mean over equally many
  // samples.
  over_ranks,
  // The number of samples or tokens passed to DistributedDataParallel::count_samples() on all ranks
  // since the last synchronised pass. Each loss is a sum over its samples; ranks may have unequal
  // numbers of samples.
  over_samples,
};

// The reaction to an infinite or NaN gradient of any rank; equal on every rank. Gradients are
// checked before they are summed. Overflow in the sum, or in the type of a compressing
// communication hook, is not detected.
enum class NonFinite {
  // backward() throws Error(corrupt), which names parameter and rank.
  fail,
  // All gradients become undefined, so the optimizer skips this pass; this is logged.
  skip,
  // The value spreads to all ranks, as in PyTorch. GradScaler (mixed_precision.h) finds it there.
  ignore,
};

struct DistributedDataParallelOptions {
  // Whether rank 0's buffers, such as the running mean of BatchNorm, are broadcast before each
  // forward(). Without it, buffers drift apart.
  bool broadcast_buffers = true;

  // Whether a backward pass may leave parameters out, different ones on each rank and in each pass.
  // A parameter that no rank has used keeps its gradient. If only some ranks have used it, its
  // gradient counts as zero on the others. Without this option, such a pass is an Error that names
  // the parameters.
  bool find_unused_parameters = false;

  // Promises that every pass uses the same parameters equally often. Parameters may then be unused
  // without find_unused_parameters, or used by several nested backward() calls, as in recomputation
  // of activations. The first pass is the model for all others.
  bool static_graph = false;

  // MiB of a bucket of gradients; by default 25, and 1 for the first. Matters if buckets are
  // reduced during backward(): small ones start early, large ones have less overhead.
  std::optional<double> bucket_cap_mb = {};
  // MiB of each bucket in turn; PyTorch's bucket_cap_mb_list.
  std::vector<double> bucket_caps_mb = {};

  // Whether buckets are reduced on their own thread during backward(). By default true on CUDA
  // devices, across hosts, and on one host if each rank has a core that its intra-op threads do not
  // need. Without such a core, the thread costs backward() as much time as it saves. If false,
  // everything is reduced at the end of backward().
  std::optional<bool> overlap = {};

  // Whether `.grad` becomes a view of its bucket in backward(). This saves the memory and the copy
  // of a second tensor. It concerns gradients below 256 KB; with a communication hook and on a CUDA
  // device, all. By default `.grad` stays the tensor that autograd or the program has made, and the
  // mean is written to it.
  // The limits are PyTorch's. The next averaged pass overwrites the view: clone a gradient that is
  // kept across zero_grad() or saved in a graph, where autograd throws. If the program puts a
  // tensor of its own into `.grad`, the next averaged pass replaces it by the view.
  bool gradient_as_bucket_view = false;

  // Whether the ranks of a host share one copy of the parameters. SharedOptimizer
  // (shared_optimizer.h) steps them: each rank sums and steps its slice, and no gather follows.
  // Other writes to them, for example loading weights, must go through
  // DistributedDataParallel::edit_parameters(); to() and set_data() are an Error. All ranks must be
  // on one host, with parameters in CPU memory. Hooks, overlap and join() are not supported.
  bool share_parameters = false;

  // Names of parameters whose gradients are sparse, besides the weights of every
  // torch::nn::Embedding and EmbeddingBag with sparse(true): for example those that forward() gives
  // to torch::embedding(). Ranks gather the elements of sparse gradients and add them up. CPU
  // memory only.
  std::vector<std::string> sparse_gradients = {};

  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;

  // Number of pieces of a step's global batch, for train_pieces(); 0 disables it. train_pieces()
  // computes the same bits on every number of ranks that divides this number. More pieces allow
  // more ranks but are smaller, so each step takes longer. CPU memory only.
  int deterministic = 0;

  // Number of intra-op threads on every rank, set by torch::set_num_threads(). The bits depend on
  // this number, so it is part of the promise.
  int deterministic_threads = 1;

  // Seed of the random numbers drawn in train_pieces(), for example by dropout.
  std::uint64_t deterministic_seed = 0;
};

// Options of DistributedDataParallel::join(), for ranks whose inputs end at different times. Names
// and defaults are those of PyTorch's Join.
struct JoinOptions {
  // Whether gradients are still divided by the number of all ranks after some have joined: then
  // every sample has the same weight. Otherwise by the number of active ranks.
  // GradientMean::over_samples always divides by the number of samples.
  bool divide_by_initial_world_size = true;

  // Whether all ranks throw Error(aborted) as soon as one has joined.
  bool throw_on_early_termination = false;
};

// --- Reports ------------------------------------------------------------------------------------

// The indices of each bucket's parameters, in their order in the bucket.
using BucketAssignment = std::vector<std::vector<std::size_t>>;

// A gradient with an infinity or a NaN, and where it was found before any gradients were summed.
struct NonFiniteGradient {
  int rank;
  std::string parameter;
};

// Time spent in averaged passes since the beginning. On a CUDA device, times are those of
// enqueueing, and `wait` includes the wait for the device.
struct BackwardTimes {
  std::chrono::nanoseconds copy{};    // Copying into buckets.
  std::chrono::nanoseconds wait{};    // Waiting for other ranks and, with overlap, for the thread.
  std::chrono::nanoseconds reduce{};  // Summing; with overlap, in parallel to backward().
};

}  // namespace lockstep
