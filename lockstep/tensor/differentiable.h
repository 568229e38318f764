// Collectives with gradients, for layers sharded over ranks (docs/guide/model-parallel.md).
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
// Megatron-Core's functions (tensor_parallel/mappings.py) on any dim. Reductions are sums. Ranks
// must compute the same loss from gather_from_parallel_region(), and each its own part of the loss
// from gather_from_sequence_region(). Parts are those of chunk_sizes(). Gathers and
// all_to_all_in_region() first exchange sizes, which may differ along `dim` or `concat_dim`.
// Memory: results are new contiguous tensors; all_reduce prefers registered memory.
// copy_to_parallel_region() shares the input's memory. A group of one rank returns the input.
// Autograd: gradients are differentiable; forward mode is not supported. An input requires a
// gradient on all ranks or on none; without one, backward() does not communicate. Otherwise it
// communicates in autograd's order, equal for equal graphs.
// Options: Errors contain the label; the timeout applies to each collective; keep_alive is ignored.
// Types, Thread safety, Blocking, Errors: as in collectives.h, also in backward(). bfloat16 and
// float16 are summed as in buffer.h. Misuse for a nonexistent dim. Mismatch, where ranks
// communicate, for different types, or sizes except along the dims of gathers and all_to_all.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// As torch.chunk: ceil(size / parts) elements while elements remain, then zeros, which torch.chunk
// omits.
LOCKSTEP_API std::vector<std::int64_t> chunk_sizes(std::int64_t size, int parts);

// Starts a region whose ranks use equal inputs in different ways.
LOCKSTEP_API at::Tensor copy_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                const CallOptions& options = {});

// Ends a region: the sum of all ranks' `x`.
LOCKSTEP_API at::Tensor reduce_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                    const CallOptions& options = {});

// This rank's part of `x`, which is equal on all ranks.
LOCKSTEP_API at::Tensor scatter_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                   std::int64_t dim,
                                                   const CallOptions& options = {});

// All ranks' parts, joined along `dim`.
LOCKSTEP_API at::Tensor gather_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                                    std::int64_t dim,
                                                    const CallOptions& options = {});
LOCKSTEP_API at::Tensor gather_from_sequence_region(const at::Tensor& x, const ProcessGroup& group,
                                                    std::int64_t dim,
                                                    const CallOptions& options = {});

// This rank's part of the sum of all ranks' `x`.
LOCKSTEP_API at::Tensor reduce_scatter_to_sequence_region(const at::Tensor& x,
                                                          const ProcessGroup& group,
                                                          std::int64_t dim,
                                                          const CallOptions& options = {});

// Cuts `x` along `split_dim`, sends part r to rank r, and joins the received parts along
// `concat_dim`. Errors: also mismatch, on all ranks, for different sizes along `split_dim`, unless
// split_dim == concat_dim.
LOCKSTEP_API at::Tensor all_to_all_in_region(const at::Tensor& x, const ProcessGroup& group,
                                             std::int64_t split_dim, std::int64_t concat_dim,
                                             const CallOptions& options = {});

// Sends the next send_rows[r] rows of `x` (dim 0) to rank r. Returns the received rows in rank
// order: receive_rows[r] of rank r. Errors: also misuse unless the numbers cover all rows and
// ranks.
LOCKSTEP_API at::Tensor all_to_all_rows_in_region(const at::Tensor& x, const ProcessGroup& group,
                                                  at::IntArrayRef send_rows,
                                                  at::IntArrayRef receive_rows,
                                                  const CallOptions& options = {});

}  // namespace lockstep
