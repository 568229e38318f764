// Collectives with gradients, for layers that are sharded over ranks
// (docs/guide/model-parallel.md).
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
// These are the functions of Megatron-Core (tensor_parallel/mappings.py), on any dim. Reductions
// are sums. gather_from_parallel_region() assumes that all ranks compute the same loss from its
// result; gather_from_sequence_region() assumes that each computes its own part of the loss.
// Parts are those of chunk_sizes() along `dim`; later ranks may get less or nothing. Gathers and
// all_to_all accept any sizes along `dim`, at the cost of a collective that exchanges the sizes.
// Negative dims count from the end.
// Memory: results are new contiguous tensors, but that of copy_to_parallel_region() shares the
// input's memory. A group of one rank returns the input. All_reduces run in registered memory, of
// which the group keeps two to four times the largest one.
// Autograd: gradients are differentiable; forward mode is not supported. If an input requires no
// gradient, which must be so on all ranks, backward() does not communicate.
// Types: as in collectives.h. bfloat16 is summed in float32.
// Options: Errors of forward and backward contain options.label. The timeout applies to each call.
// options.keep_alive is ignored.
// Thread safety, Blocking: as ProcessGroup's. backward() calls in autograd's order, which is equal
// on ranks with equal graphs.
// Errors: as in collectives.h, also from backward(). Misuse for a dim that does not exist.
// Mismatch, on all ranks, if types, or sizes other than along `dim`, differ between ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The sizes of `parts` parts of `size` elements, as in torch.chunk: parts have ceil(size / parts)
// elements while elements remain. Zeros stand for the chunks that torch.chunk omits.
LOCKSTEP_API std::vector<std::int64_t> chunk_sizes(std::int64_t size, int parts);

// Starts a region whose ranks use equal inputs in different ways.
LOCKSTEP_API at::Tensor copy_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                const CallOptions& options = {});

// Ends a region: returns the sum of all ranks' `x`.
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
// `concat_dim`. Errors: also mismatch, on all ranks, if sizes along `split_dim` differ between
// ranks and it is not `concat_dim`.
LOCKSTEP_API at::Tensor all_to_all_in_region(const at::Tensor& x, const ProcessGroup& group,
                                             std::int64_t split_dim, std::int64_t concat_dim,
                                             const CallOptions& options = {});

// Sends the next send_rows[r] rows of `x` (slices along dim 0) to rank r. Returns the received rows
// in rank order: receive_rows[r] of rank r. There is no collective for these numbers. Errors: also
// misuse if the numbers do not cover all rows and ranks.
LOCKSTEP_API at::Tensor all_to_all_rows_in_region(const at::Tensor& x, const ProcessGroup& group,
                                                  at::IntArrayRef send_rows,
                                                  at::IntArrayRef receive_rows,
                                                  const CallOptions& options = {});

}  // namespace lockstep
