// Attention over sequences that are sharded over ranks: context parallelism
// (docs/guide/model-parallel.md).
//
//   constexpr auto order = lockstep::nn::SequenceOrder::head_tail;
//   const auto x = lockstep::nn::sequence_part(tokens, 1, mesh["cp"], order);  // [N, T / cp].
//   ...
//   auto y = lockstep::nn::scaled_dot_product_attention(
//       q, k, v, {.context = mesh["cp"], .is_causal = true, .order = order});  // Like q.
//
// Positions come from sequence_positions(); a Transformer's other layers need no change. Average
// gradients with DistributedDataParallel over mesh[{"dp", "cp"}].

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::nn {

// How W ranks divide a sequence. Rank r has:
enum class SequenceOrder {
  contiguous,  // Part r of W equal parts.
  head_tail,   // Parts r and 2 W - 1 - r of 2 W equal parts. Balances the work of a causal mask,
               // like PyTorch's _HeadTailLoadBalancer.
};

enum class ContextMethod {
  // CPU: ring if the ranks share one host's memory, or if their number does not divide the number
  // of heads; otherwise ulysses. CUDA: ulysses.
  automatic,

  // Each rank attends to the keys and values of one rank after the other. It merges the results by
  // their log-sum-exp (Liu, Zaharia and Abbeel, 2023). On one host, keys and values are in shared
  // memory; otherwise they travel around the ring in size - 1 steps.
  ring,

  // Each rank processes some heads for the whole sequence (Jacobs et al., 2023). forward() and
  // backward() use four all_to_all each; forward() first exchanges sizes in four small collectives.
  // The number of ranks must divide that of query heads; key heads are repeated if necessary.
  ulysses,
};

// Equal on all ranks of the group.
struct AttentionOptions {
  std::optional<ProcessGroup> context = {};  // The ranks that share each sequence, if any.
  bool is_causal = false;                    // A position attends to itself and earlier ones.
  double dropout_p = 0;                      // For attention weights; must be 0 with several ranks.
  std::optional<double> scale = {};          // Factor of q k^T. Default: 1 / sqrt(head width).

  // Grouped-query attention: head h of q uses head h / (q heads / k heads) of k and v.
  bool enable_gqa = false;

  SequenceOrder order = SequenceOrder::contiguous;  // Used with is_causal only.
  ContextMethod method = ContextMethod::automatic;
  std::string name = {};                                  // The layer's, for Errors.
  std::optional<std::chrono::milliseconds> timeout = {};  // Per collective.
};

// Computes torch.nn.functional.scaled_dot_product_attention() of the whole sequences. Takes this
// rank's parts of q, [N, heads, T / W, width], and of k and v, [N, key heads, S / W, width].
// Returns this rank's part of the result, shaped as q. A causal mask over several ranks needs equal
// T and S.
// Memory: a ring on one host keeps k and v in shared memory until backward(). Later calls reuse the
// memory until the group ends.
// Autograd: gradients of k and v include the queries of all ranks. Each of q, k and v requires a
// gradient on all ranks or on none.
// Equality: up to rounding. For float16 and bfloat16, a ring computes softmax and merges in
// float32. A ring may lose a NaN of q: LibTorch's CPU kernel returns zeros for it.
// Thread safety, Blocking: collective over the group, and so is backward().
// Errors: misuse, on all ranks, for shapes and types that do not fit together, an odd causal
// head_tail part, and heads that ulysses cannot divide. Unsupported for dropout with several ranks,
// and for a ring outside CPU memory or with second-order gradients. Mismatch, on all ranks, for
// different shapes, types or options. Also ProcessGroup's.
LOCKSTEP_API at::Tensor scaled_dot_product_attention(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v,
                                                     const AttentionOptions& options = {});

// Positions of this rank's part of a sequence of `length`: int64, on the CPU. Errors of this and
// the next two functions: misuse unless the number of ranks (twice it in head_tail order of several
// ranks) divides the length.
LOCKSTEP_API at::Tensor sequence_positions(std::int64_t length, const ProcessGroup& context,
                                           SequenceOrder order = SequenceOrder::contiguous);

// This rank's part of a whole `x` along `dim`.
LOCKSTEP_API at::Tensor sequence_part(const at::Tensor& x, std::int64_t dim,
                                      const ProcessGroup& context,
                                      SequenceOrder order = SequenceOrder::contiguous);

// Joins all ranks' parts. Collective; differentiable as gather_from_parallel_region().
LOCKSTEP_API at::Tensor whole_sequence(const at::Tensor& part, std::int64_t dim,
                                       const ProcessGroup& context,
                                       SequenceOrder order = SequenceOrder::contiguous);

}  // namespace lockstep::nn
