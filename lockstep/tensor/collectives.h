// Collectives on tensors.
//
//   const at::Tensor all = all_gather(predictions, world);  // [world.size(), ...]
//   all_reduce(loss, world, ReduceOp::average);             // In place.
//
// Memory: contiguous tensors are used in place; others are copied, and back if written. Outputs of
// _async forms must be contiguous. A group and its subgroups do not copy its registered_zeros().
// Shapes: `rows` are slices along dim 0. Part r has splits[r] rows; without `splits`, parts are
// equal. The _uneven forms exchange the numbers of rows first, with one more collective. If ranks
// pass different shapes or types, all get a mismatch.
// Types: any can be moved. Reductions take float16, bfloat16, float32, float64, integers of 8 to 64
// bits and bool, as ReduceOp permits; sum and average also complex numbers.
// Autograd: records nothing.
// CUDA: tensors may be on local_device() if the group has an engine for it. Calls are ordered in
// the current stream. They return, and a Work completes, once enqueued. Concurrent asynchronous
// calls of several groups need one stream per group, or ranks could enqueue them in different
// orders. Unsupported: messages, bitwise reductions, and reductions of 16-bit integers.
// Thread safety, Blocking: as ProcessGroup's. The _async forms keep their tensors alive.
// Errors: as ProcessGroup's; misuse for an output made by expand(). Unsupported for tensors that
// are quantised, not dense, or in neither CPU nor CUDA memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// CUDA device local_rank() modulo the number of devices. NCCL rejects two ranks on one device;
// since 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1 permits it. Needs no CUDA at compile time.
// Errors: unsupported without CUDA in LibTorch or without a device.
LOCKSTEP_API c10::Device local_device(const ProcessGroup& group);

struct InPlaceArguments {
  ReduceOp op = ReduceOp::sum;  // Only for operations that combine elements.
  int root = 0;                 // Only for operations with a root.
};

// Any in-place operation of operation_table (job/detail/operation.h), such as the three below.
// Errors: also misuse for an operation that is not in place.
LOCKSTEP_API void run_in_place(const at::Tensor& tensor, const ProcessGroup& group,
                               Operation operation, const InPlaceArguments& given = {},
                               const CallOptions& options = {});
LOCKSTEP_API Work run_in_place_async(const at::Tensor& tensor, const ProcessGroup& group,
                                     Operation operation, const InPlaceArguments& given = {},
                                     const CallOptions& options = {});

// Combines the tensors of all ranks, element by element.
inline void all_reduce(const at::Tensor& tensor, const ProcessGroup& group,
                       ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  run_in_place(tensor, group, Operation::all_reduce, {.op = op}, options);
}
inline Work all_reduce_async(const at::Tensor& tensor, const ProcessGroup& group,
                             ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  return run_in_place_async(tensor, group, Operation::all_reduce, {.op = op}, options);
}

// Replaces `tensor` by that of rank `root`.
inline void broadcast(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                      const CallOptions& options = {}) {
  run_in_place(tensor, group, Operation::broadcast, {.root = root}, options);
}
inline Work broadcast_async(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                            const CallOptions& options = {}) {
  return run_in_place_async(tensor, group, Operation::broadcast, {.root = root}, options);
}

// An all_reduce() that writes only the tensor of rank `root`.
inline void reduce(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  run_in_place(tensor, group, Operation::reduce, {.op = op, .root = root}, options);
}
inline Work reduce_async(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) {
  return run_in_place_async(tensor, group, Operation::reduce, {.op = op, .root = root}, options);
}

// Returns the tensors of all ranks, joined: [group.size(), *tensor.sizes()].
LOCKSTEP_API at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group,
                                   const CallOptions& options = {});

// As all_gather(), into `output` of that shape; with `splits`, concatenated.
LOCKSTEP_API Work all_gather_async(const at::Tensor& output, const at::Tensor& tensor,
                                   const ProcessGroup& group, at::IntArrayRef splits = {},
                                   const CallOptions& options = {});
template <int = 0>  // A template, so that `{}` for splits is not ambiguous.
[[deprecated("pass splits")]] Work all_gather_async(const at::Tensor& output,
                                                    const at::Tensor& tensor,
                                                    const ProcessGroup& group,
                                                    const CallOptions& options) {
  return all_gather_async(output, tensor, group, {}, options);
}
[[deprecated("use all_gather_async()")]] inline Work all_gather_uneven_async(
    const at::Tensor& output, const at::Tensor& tensor, const ProcessGroup& group,
    at::IntArrayRef splits, const CallOptions& options = {}) {
  return all_gather_async(output, tensor, group, splits, options);
}

// Returns all ranks' tensors, with any numbers of rows, as views of one.
LOCKSTEP_API std::vector<at::Tensor> all_gather_uneven(const at::Tensor& tensor,
                                                       const ProcessGroup& group,
                                                       const CallOptions& options = {});

// Returns this rank's part of the combination. `splits` are equal on all ranks.
LOCKSTEP_API at::Tensor reduce_scatter(const at::Tensor& tensor, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum, at::IntArrayRef splits = {},
                                       const CallOptions& options = {});
LOCKSTEP_API Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& tensor,
                                       const ProcessGroup& group, ReduceOp op = ReduceOp::sum,
                                       at::IntArrayRef splits = {},
                                       const CallOptions& options = {});

// As all_gather() and all_gather_uneven(), but only rank `root` gets the result. Others get an
// undefined tensor or an empty vector; their `output` is ignored.
LOCKSTEP_API at::Tensor gather(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                               const CallOptions& options = {});
LOCKSTEP_API Work gather_async(const at::Tensor& output, const at::Tensor& tensor,
                               const ProcessGroup& group, int root = 0,
                               const CallOptions& options = {});
LOCKSTEP_API std::vector<at::Tensor> gather_uneven(const at::Tensor& tensor,
                                                   const ProcessGroup& group, int root = 0,
                                                   const CallOptions& options = {});

// Replaces `output` by input[rank] of rank `root`, whose `input` has shape [group.size(),
// *output.sizes()]. With `splits`, rank r gets splits[r] rows. Ignores the other ranks' input.
LOCKSTEP_API void scatter(const at::Tensor& output, const at::Tensor& input,
                          const ProcessGroup& group, int root = 0, at::IntArrayRef splits = {},
                          const CallOptions& options = {});
LOCKSTEP_API Work scatter_async(const at::Tensor& output, const at::Tensor& input,
                                const ProcessGroup& group, int root = 0,
                                at::IntArrayRef splits = {}, const CallOptions& options = {});

// Sends send_splits[r] rows of `tensor` to rank r, and returns receive_splits[r] rows of each rank
// r, in rank order. Pass both splits or neither.
LOCKSTEP_API at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                                   at::IntArrayRef send_splits = {},
                                   at::IntArrayRef receive_splits = {},
                                   const CallOptions& options = {});

// As all_to_all(), if receivers do not know their splits.
LOCKSTEP_API at::Tensor all_to_all_uneven(const at::Tensor& tensor, const ProcessGroup& group,
                                          at::IntArrayRef send_splits,
                                          const CallOptions& options = {});

// As all_to_all(), into `output`.
LOCKSTEP_API Work all_to_all_async(const at::Tensor& output, const at::Tensor& tensor,
                                   const ProcessGroup& group, at::IntArrayRef send_splits = {},
                                   at::IntArrayRef receive_splits = {},
                                   const CallOptions& options = {});

// Messages as ProcessGroup's; options.label is ignored. Ranks compare types and element counts, not
// shapes.
LOCKSTEP_API void send(const at::Tensor& tensor, const ProcessGroup& group, int peer,
                       std::int64_t tag = 0, const CallOptions& options = {});
LOCKSTEP_API Work send_async(const at::Tensor& tensor, const ProcessGroup& group, int peer,
                             std::int64_t tag = 0, const CallOptions& options = {});
LOCKSTEP_API Source recv(const at::Tensor& tensor, const ProcessGroup& group, int peer = any_source,
                         std::int64_t tag = any_tag, const CallOptions& options = {});
LOCKSTEP_API Work recv_async(const at::Tensor& tensor, const ProcessGroup& group,
                             int peer = any_source, std::int64_t tag = any_tag,
                             const CallOptions& options = {});

// Zeros in registered memory. Collective; `sizes` are equal on all ranks. The tensor may outlive
// the group.
LOCKSTEP_API at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType dtype,
                                         const ProcessGroup& group);

// A view from byte `offset`, keeping the memory mapped. Strides count elements.
LOCKSTEP_API at::Tensor view_of(const RegisteredMemory& memory, std::size_t offset,
                                at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype);

// The DType for reductions of `dtype`. Errors: unsupported if there is none.
LOCKSTEP_API DType reducible_dtype(at::ScalarType dtype);

}  // namespace lockstep
