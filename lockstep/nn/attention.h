// Attention over sequences that are sharded over the ranks of a group (context parallelism).
//
//   constexpr auto order = lockstep::nn::SequenceOrder::head_tail;
//   const auto x = lockstep::nn::sequence_part(tokens, 1, mesh["cp"], order);    // [N, T / cp]
//   const auto positions = lockstep::nn::sequence_positions(T, mesh["cp"], order);  // [T / cp]
//   ...
//   auto y = lockstep::nn::scaled_dot_product_attention(
//       q, k, v, {.context = mesh["cp"], .is_causal = true, .order = order});
//
// The other layers of a Transformer process each position independently and need no change. Each
// rank computes partial gradients of the parameters: average them with DistributedDataParallel over
// mesh[{"dp", "cp"}].

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

// Assigns the positions of a sequence to the W ranks. Rank r has:
enum class SequenceOrder {
  contiguous,  // Part r of W equal parts.
  head_tail,   // Parts r and 2 W - 1 - r of 2 W equal parts. It balances the work under a causal
               // mask, like PyTorch's _HeadTailLoadBalancer.
};

enum class ContextMethod {
  // CPU: ring if all ranks are on one host or the number of heads is not a multiple of the ranks,
  // otherwise ulysses. CUDA: ulysses.
  automatic,

  // Each rank attends to the keys and values of one rank after the other, and merges the results by
  // their log-sum-exp (Liu, Zaharia and Abbeel, 2023). Accepts any number of heads. On one host,
  // each rank copies its keys and values to shared memory once, and the others read them there.
  // Otherwise keys and values travel around the ring in size - 1 steps. CPU tensors only.
  ring,

  // Each rank processes some of the heads for the whole sequence (Jacobs et al., 2023). A call
  // makes four all_to_all, and four small collectives that exchange sizes. The number of query
  // heads must be a multiple of the ranks. If the number of key heads is not, key heads are
  // repeated before they are sent.
  ulysses,
};

// Options must be equal on all ranks of the group.
struct AttentionOptions {
  std::optional<ProcessGroup> context = {};  // The ranks that share each sequence.
  bool is_causal = false;                    // A position attends to itself and earlier ones.
  double dropout_p = 0;              // Dropout of attention weights; must be 0 with several ranks.
  std::optional<double> scale = {};  // Factor of q k^T. Default: 1 / sqrt(head width).

  // Grouped-query attention, as in LLaMA: the number of q heads is a multiple of the number of k
  // and v heads. Head h of q uses head h / (q heads / k heads).
  bool enable_gqa = false;

  SequenceOrder order = SequenceOrder::contiguous;  // Used with is_causal only.
  ContextMethod method = ContextMethod::automatic;
  std::string name = {};                                  // The layer's name, for Errors.
  std::optional<std::chrono::milliseconds> timeout = {};  // Per collective.
};

// Computes torch.nn.functional.scaled_dot_product_attention() of the whole sequences. Takes this
// rank's parts of q, [N, heads, T / W, head width], and of k and v, [N, key heads, S / W, head
// width]. Returns this rank's part of the result, in the shape of q. Without a group, or with one
// rank, it calls the function of LibTorch. With several ranks, a causal mask needs T = S.
// Memory: a rank holds its parts only. A ring on one host keeps k and v in shared memory until
// backward(). Later calls reuse these blocks; they are freed when the group ends.
// Autograd: gradients of k and v include the queries of all ranks. backward() communicates like
// forward(): either all ranks require gradients or none.
// Equality: up to rounding. For float16 and bfloat16, a ring computes softmax and merges in
// float32. A ring's result may lack a NaN of q, because LibTorch's CPU kernel returns zeros for it
// in short sequences.
// Thread safety, Blocking: collective over the group, and so is backward().
// Errors: misuse, on all ranks, for shapes and types that do not match, a number of heads that the
// ranks do not divide, and an odd part in head_tail order. Unsupported for dropout with several
// ranks, for a ring outside CPU memory, and for second-order gradients of a ring. Mismatch, on all
// ranks, if shapes, types or options differ between ranks. Those of ProcessGroup.
LOCKSTEP_API at::Tensor scaled_dot_product_attention(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor& v,
                                                     const AttentionOptions& options = {});

// Returns the positions of this rank's part of a sequence of `length`, for position embeddings:
// int64, on the CPU.
// Errors of this and the next two functions: misuse if the length is not a multiple of the ranks,
// or, in head_tail order, of twice the ranks.
LOCKSTEP_API at::Tensor sequence_positions(std::int64_t length, const ProcessGroup& context,
                                           SequenceOrder order = SequenceOrder::contiguous);

// Returns this rank's part of `x`, which is whole on all ranks. `dim` is the dimension of the
// sequence.
LOCKSTEP_API at::Tensor sequence_part(const at::Tensor& x, std::int64_t dim,
                                      const ProcessGroup& context,
                                      SequenceOrder order = SequenceOrder::contiguous);

// Joins the parts of all ranks in the order of the sequence. Collective. The gradient is that of
// gather_from_parallel_region().
LOCKSTEP_API at::Tensor whole_sequence(const at::Tensor& part, std::int64_t dim,
                                       const ProcessGroup& context,
                                       SequenceOrder order = SequenceOrder::contiguous);

}  // namespace lockstep::nn
