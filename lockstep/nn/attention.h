// Attention over sequences that are cut over the ranks of a group: context parallelism.
//
//   constexpr auto order = lockstep::nn::SequenceOrder::head_tail;
//   const auto x = lockstep::nn::sequence_part(tokens, 1, mesh["cp"], order);    // [N, T / cp]
//   const auto positions = lockstep::nn::sequence_positions(T, mesh["cp"], order);  // [T / cp]
//   ...
//   auto y = lockstep::nn::scaled_dot_product_attention(
//       q, k, v, {.context = mesh["cp"], .is_causal = true, .order = order});
//
// All other layers of a Transformer see each position by itself, so they work on parts as they are.
// Gradients of parameters are parts, too: average them over the group, with those of data parallel
// ranks, by a DistributedDataParallel over mesh[{"dp", "cp"}].

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

// Which positions of a sequence rank r of W ranks has.
enum class SequenceOrder {
  contiguous,  // Part r of W equal parts.
  head_tail,   // Parts r and 2 W - 1 - r of 2 W equal parts: with a causal mask, all ranks have
               // equal work. PyTorch's _HeadTailLoadBalancer has the same order.
};

enum class ContextMethod {
  // Ring if all ranks are on one host or the heads cannot be divided, else ulysses. On CUDA
  // ulysses.
  automatic,

  // Each rank attends to the keys and values of one rank after the other, and merges the results by
  // their log-sum-exp (Liu, Zaharia and Abbeel, 2023). Any number of heads. On one host, each rank
  // copies its keys and values to shared memory once, and the others read them there. Otherwise
  // they go from rank to rank, size - 1 times. CPU tensors only.
  ring,

  // Each rank gets some of the heads of the whole sequence, and later gives its results back: four
  // all_to_all, and four small collectives of their sizes (Jacobs et al., 2023). The heads of the
  // queries must be a multiple of the ranks.
  // Key heads that are not are repeated before they are sent.
  ulysses,
};

// Must be equal on all ranks of the group.
struct AttentionOptions {
  std::optional<ProcessGroup> context = {};  // The ranks that share each sequence.
  bool is_causal = false;                    // Each position sees itself and earlier ones.
  double dropout_p = 0;                      // Of attention weights; with several ranks 0.
  std::optional<double> scale = {};          // Of q k^T. Default: 1 / sqrt(head width).

  // k and v have fewer heads than q, a divisor of them: head h of q uses head h / (q heads / k
  // heads), as in LLaMA.
  bool enable_gqa = false;

  SequenceOrder order = SequenceOrder::contiguous;  // Used with is_causal only.
  ContextMethod method = ContextMethod::automatic;
  std::string name = {};                                  // The layer's, for Errors.
  std::optional<std::chrono::milliseconds> timeout = {};  // Of each collective.
};

// torch.nn.functional.scaled_dot_product_attention() of the whole sequences: returns this rank's
// part of the result, [N, heads, T / W, head width], from its parts of q, of the same shape, and of
// k and v, [N, key heads, S / W, head width]. Without a group, and on one rank, it is that
// function; a causal mask over several ranks needs T = S.
// Memory: a rank holds parts only. Ring on one host keeps k and v in shared memory until
// backward(). The blocks are used again by later calls, and given back when the group ends.
// Autograd: the gradients of k and v are those of all ranks' queries. backward() communicates as
// forward() does, so all ranks require gradients or none does.
// Equality: to rounding. A ring's softmax and merges are in float32 for float16 and bfloat16. A NaN
// in q may be missing in a ring's result, as LibTorch's CPU kernel gives zeros for it in short
// sequences.
// Thread safety, Blocking: collective over the group, backward() too.
// Errors: misuse, on all ranks, for shapes and types that do not fit together, heads that cannot be
// divided, and an odd part in head_tail order. Unsupported for dropout over several ranks, for a
// ring outside of CPU memory, and for the gradient of a ring's gradient. Mismatch, on all ranks,
// when shapes, types or options differ between ranks. Those of ProcessGroup.
LOCKSTEP_API at::Tensor scaled_dot_product_attention(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v,
                                                     const AttentionOptions& options = {});

// The positions of this rank's part of a sequence of `length`: int64, on the CPU, for position
// embeddings.
// Errors of the three: misuse when the length is no multiple of the ranks; in head_tail order, of
// twice the ranks.
LOCKSTEP_API at::Tensor sequence_positions(std::int64_t length, const ProcessGroup& context,
                                           SequenceOrder order = SequenceOrder::contiguous);

// This rank's part of `x`, which is whole on all ranks and whose sequences are along `dim`.
LOCKSTEP_API at::Tensor sequence_part(const at::Tensor& x, std::int64_t dim,
                                      const ProcessGroup& context,
                                      SequenceOrder order = SequenceOrder::contiguous);

// All ranks' parts as one, in the order of the sequence. Collective. The gradient is that of
// gather_from_parallel_region().
LOCKSTEP_API at::Tensor whole_sequence(const at::Tensor& part, std::int64_t dim,
                                       const ProcessGroup& context,
                                       SequenceOrder order = SequenceOrder::contiguous);

}  // namespace lockstep::nn
