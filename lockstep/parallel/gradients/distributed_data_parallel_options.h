// How DistributedDataParallel works. Names and defaults are PyTorch's where it has the option. All
// ranks give the same.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

// What gradients are divided by.
enum class GradientMean {
  // The number of ranks, as in PyTorch. Right when each rank's loss is a mean over as many samples.
  over_ranks,
  // The number of samples, or tokens, that DistributedDataParallel::count_samples() was told of, on
  // all ranks and since the last synchronised pass. Each loss is a sum over its samples; ranks may
  // have unequal numbers of them.
  over_samples,
};

// What happens when a rank's gradient is infinite or NaN. Every rank does the same. What is looked
// at are the gradients before they are summed: not what overflows in the sum, or in the type in
// which a communication hook compresses them.
enum class NonFinite {
  // backward() throws Error(corrupt), which names parameter and rank.
  fail,
  // All gradients become undefined, so that the optimizer steps over this pass; it is logged.
  skip,
  // It spreads to all ranks, as in PyTorch.
  ignore,
};

struct DistributedDataParallelOptions {
  // Whether buffers, such as the running mean of BatchNorm, become rank 0's before forward().
  // Without it they drift apart; with it each forward() has a broadcast.
  bool broadcast_buffers = true;

  // Whether a backward pass may leave parameters out, different ones on each rank and each time.
  // Those that no rank has used keep their gradient; on the ranks that have not used one that
  // another has, it counts as zero. Without it such a pass is an Error that names them.
  bool find_unused_parameters = false;

  // Promises that every pass uses the same parameters equally often: then some may be unused
  // without find_unused_parameters, and some may be used by several nested backward() calls, as
  // recomputation of activations does. The first pass is the model for all others.
  bool static_graph = false;

  // MiB of a bucket of gradients; 25, and 1 for the first, when not given. Matters where buckets
  // are reduced during backward(): small ones start early, large ones have less overhead.
  std::optional<double> bucket_cap_mb = {};
  std::vector<double> bucket_caps_mb = {};  // Of each bucket in turn; PyTorch's bucket_cap_mb_list.

  // Whether buckets are reduced on a thread of their own while backward() goes on. When not given:
  // on CUDA devices, across hosts, and on one where each rank has a core that no intra-op thread
  // needs. Without one the thread takes from backward() what it saves; then everything is reduced
  // at once at the end.
  std::optional<bool> overlap = {};

  // Whether the parameters lie once in the memory of the host, for all its ranks, instead of once
  // for each rank. SharedOptimizer (shared_optimizer.h) steps them: each rank sums and steps its
  // slice, and nothing is gathered afterwards. What else writes to them, loading weights say, is
  // for DistributedDataParallel::edit_parameters(); to() and set_data() are an Error. All ranks
  // must be on one host, and parameters in CPU memory; there is no hook, overlap or join() then.
  bool share_parameters = false;

  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;

  // Into how many pieces the global batch of a step is cut, for train_pieces(), which gives the
  // same bits on every number of ranks that divides it; 0 for none of that. More pieces allow more
  // ranks and are smaller, so each step takes longer. In CPU memory only.
  int deterministic = 0;

  // The intra-op threads that every rank computes with, by torch::set_num_threads(): the bits
  // depend on their number, so it is part of what is promised.
  int deterministic_threads = 1;

  // Of the random numbers that are drawn in train_pieces(), by dropout say.
  std::uint64_t deterministic_seed = 0;
};

// Of DistributedDataParallel::join(), for ranks whose inputs end at different times. Names and
// defaults are those of PyTorch's Join.
struct JoinOptions {
  // Whether gradients are still divided by the number of all ranks when some have joined: then
  // every sample weighs the same. Otherwise by the number of ranks that are active.
  // GradientMean::over_samples divides by the samples there were, in either case.
  bool divide_by_initial_world_size = true;

  // Whether all ranks throw Error(aborted) as soon as one has joined.
  bool throw_on_early_termination = false;
};

}  // namespace lockstep
