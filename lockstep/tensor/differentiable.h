// Collectives with a gradient, for layers whose ranks hold parts of one computation.
//
//   auto x = copy_to_parallel_region(input, tp);           // Whole input, own rows of the weight.
//   auto y = at::linear(x, own_rows);                      // Own part of the features.
//   auto z = at::linear(y, own_columns);                   // A part of the sum.
//   z = reduce_from_parallel_region(z, tp) + bias;         // Whole output.
//
//   function                          forward         backward
//   copy_to_parallel_region           the input       all_reduce
//   reduce_from_parallel_region       all_reduce      the gradient
//   scatter_to_parallel_region        own part        all_gather
//   gather_from_parallel_region       all_gather      own part
//   gather_from_sequence_region       all_gather      reduce_scatter
//   reduce_scatter_to_sequence_region reduce_scatter  all_gather
//   all_to_all_in_region              all_to_all      its inverse
//   all_to_all_rows_in_region         all_to_all      its inverse
//
// The pairs are those of Megatron-Core (tensor_parallel/mappings.py), on any dim. All reductions
// are sums. A gather_from_parallel_region() assumes that all ranks compute the same loss from its
// result; a gather_from_sequence_region(), that each computes its own part of the loss.
// Parts: pieces along `dim` as torch.chunk cuts them, see chunk_sizes(). Later ranks may get less,
// or nothing. Gathers and all_to_all accept any sizes along `dim`; they cost one more collective,
// which exchanges the sizes.
// Dims: negative ones count from the end.
// Memory: a result is a new, contiguous tensor, except that of copy_to_parallel_region(), which
// shares the input's memory. In a group of one rank, every function returns its input. All_reduces
// are done in registered memory, of which the group keeps two to four times the largest one.
// Autograd: each gradient is differentiable again. Nothing is recorded, and backward() does not
// communicate, for an input that requires no gradient; that must be so on all ranks alike. Forward
// mode is not supported.
// Types: every type can be moved; sums as in collectives.h. bfloat16 is summed in float32.
// Names: options.label, such as a layer's name, appears in Errors of the forward and the backward
// call. The timeout holds for each call. options.keep_alive is ignored.
// Thread safety, Blocking: as ProcessGroup's. backward() makes its calls in the order of autograd,
// which is the same on ranks whose graphs are the same.
// Errors: as in collectives.h, out of backward() too. Misuse for a dim that does not exist.
// Mismatch, on all ranks, when types, or sizes other than along `dim`, differ between ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The sizes of `parts` parts of `size` elements, as torch.chunk cuts them: all but the last parts
// have ceil(size / parts) elements. Zeros stand for the chunks that torch.chunk leaves out.
LOCKSTEP_API std::vector<std::int64_t> chunk_sizes(std::int64_t size, int parts);

// Begins a region whose ranks use equal inputs in different ways.
LOCKSTEP_API at::Tensor copy_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                const CallOptions& options = {});

// Ends a region: the sum of all ranks' `x`.
LOCKSTEP_API at::Tensor reduce_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                    const CallOptions& options = {});

// Returns this rank's part of `x`, which is equal on all ranks.
LOCKSTEP_API at::Tensor scatter_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                   std::int64_t dim,
                                                   const CallOptions& options = {});

// Returns all ranks' parts, joined along `dim`.
LOCKSTEP_API at::Tensor gather_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                    std::int64_t dim,
                                                    const CallOptions& options = {});
LOCKSTEP_API at::Tensor gather_from_sequence_region(const at::Tensor& x, const ProcessGroup& group,
                                                    std::int64_t dim,
                                                    const CallOptions& options = {});

// Returns this rank's part of the sum of all ranks' `x`.
LOCKSTEP_API at::Tensor reduce_scatter_to_sequence_region(const at::Tensor& x,
                                                          const ProcessGroup& group,
                                                          std::int64_t dim,
                                                          const CallOptions& options = {});

// Cuts `x` along `split_dim`, sends part r to rank r, and joins the received parts along
// `concat_dim`. Errors: in addition, mismatch, on all ranks, when sizes along `split_dim` differ
// between ranks, unless it is `concat_dim` too.
LOCKSTEP_API at::Tensor all_to_all_in_region(const at::Tensor& x, const ProcessGroup& group,
                                             std::int64_t split_dim, std::int64_t concat_dim,
                                             const CallOptions& options = {});

// Sends the next send_rows[r] rows of `x`, its slices along dim 0, to rank r, and returns the rows
// received, in rank order: receive_rows[r] of rank r. All ranks know these numbers already, so
// there is no further collective. Errors: in addition, misuse when the numbers are not those of all
// rows and ranks.
LOCKSTEP_API at::Tensor all_to_all_rows_in_region(const at::Tensor& x, const ProcessGroup& group,
                                                  at::IntArrayRef send_rows,
                                                  at::IntArrayRef receive_rows,
                                                  const CallOptions& options = {});

}  // namespace lockstep
