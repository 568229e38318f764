// Collectives on tensors.
//
//   all_reduce(loss, world, ReduceOp::average);            // In place.
//   const at::Tensor all = all_gather(predictions, world);  // [world.size(), ...]
//
// Memory: contiguous tensors are worked on where they lie. Others are copied first and, where
// the call writes to them, copied back. The _async forms copy only what they read: what they write
// must be contiguous. Tensors made by registered_zeros() are not copied at all.
// Shapes: `rows` are what lies along dim 0. Shapes and types must be the same on all ranks but for
// what is said to differ; ranks that disagree get a mismatch.
// Types: every type can be moved. Reduced are float16, bfloat16, float32, float64, all integers of
// 8 to 64 bits, bool and, by sum and average, complex numbers.
// Autograd: nothing is recorded.
// CUDA: where the group has an engine for it, tensors may lie in the memory of this rank's CUDA
// device, local_device(). A call takes its place in the thread's current stream, which finds the
// result; it returns, and a Work is complete, once that is so, and does not wait for the device.
// Asynchronous calls of several groups at once each need a stream of their own, lest ranks enqueue
// them in different orders. Not done there: messages, bitwise reductions, reductions of 16-bit
// integers.
// Thread safety, Blocking: as ProcessGroup's. The _async forms keep their tensors alive.
// Errors: as ProcessGroup's; misuse for a tensor to write to that expand() made; unsupported for
// what is not dense, in neither CPU nor CUDA memory, or quantised.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Each element becomes the combination of all ranks'.
LOCKSTEP_API void all_reduce(const at::Tensor& tensor, const ProcessGroup& group,
                             ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
LOCKSTEP_API Work all_reduce_async(const at::Tensor& tensor, const ProcessGroup& group,
                                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// `tensor` becomes that of rank `root`.
LOCKSTEP_API void broadcast(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                            const CallOptions& options = {});
LOCKSTEP_API Work broadcast_async(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                                  const CallOptions& options = {});

// As all_reduce(), but only rank `root`'s tensor is written.
LOCKSTEP_API void reduce(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                         ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
LOCKSTEP_API Work reduce_async(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                               ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// All ranks' tensors, of shape [group.size(), *tensor.sizes()].
LOCKSTEP_API at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group,
                                   const CallOptions& options = {});

// The same into `output`, which is contiguous and of that shape.
LOCKSTEP_API Work all_gather_async(const at::Tensor& output, const at::Tensor& tensor,
                                   const ProcessGroup& group, const CallOptions& options = {});

// All ranks' tensors, whose numbers of rows may differ: two collectives, of which the first
// exchanges these. The results are views of one tensor.
LOCKSTEP_API std::vector<at::Tensor> all_gather_uneven(const at::Tensor& tensor,
                                                       const ProcessGroup& group,
                                                       const CallOptions& options = {});

// The same into `output`, one after the other, when all ranks know all numbers of rows: `splits`.
LOCKSTEP_API Work all_gather_uneven_async(const at::Tensor& output, const at::Tensor& tensor,
                                          const ProcessGroup& group, at::IntArrayRef splits,
                                          const CallOptions& options = {});

// Part rank() of the combination of all ranks' tensors. The parts are of equally many rows, or of
// splits[rank] rows; `splits` are the same on all ranks.
LOCKSTEP_API at::Tensor reduce_scatter(const at::Tensor& tensor, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum, at::IntArrayRef splits = {},
                                       const CallOptions& options = {});
LOCKSTEP_API Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& tensor,
                                       const ProcessGroup& group, ReduceOp op = ReduceOp::sum,
                                       at::IntArrayRef splits = {},
                                       const CallOptions& options = {});

// As all_gather() and all_gather_uneven() on rank `root`; an undefined tensor or an empty vector on
// the others, whose `output` is not looked at.
LOCKSTEP_API at::Tensor gather(const at::Tensor& tensor, const ProcessGroup& group, int root = 0,
                               const CallOptions& options = {});
LOCKSTEP_API Work gather_async(const at::Tensor& output, const at::Tensor& tensor,
                               const ProcessGroup& group, int root = 0,
                               const CallOptions& options = {});
LOCKSTEP_API std::vector<at::Tensor> gather_uneven(const at::Tensor& tensor,
                                                   const ProcessGroup& group, int root = 0,
                                                   const CallOptions& options = {});

// `output` becomes input[rank] of rank `root`'s input, which is of shape
// [group.size(), *output.sizes()]; or, with `splits`, splits[rank] of the input's rows, which
// differ between ranks. The others' input is not looked at and may be undefined.
LOCKSTEP_API void scatter(const at::Tensor& output, const at::Tensor& input,
                          const ProcessGroup& group, int root = 0, at::IntArrayRef splits = {},
                          const CallOptions& options = {});
LOCKSTEP_API Work scatter_async(const at::Tensor& output, const at::Tensor& input,
                                const ProcessGroup& group, int root = 0,
                                at::IntArrayRef splits = {}, const CallOptions& options = {});

// The rows that all ranks have for this one, in the order of the ranks: of `tensor`, send_splits[r]
// rows go to rank r, and receive_splits[r] come from it. Both empty, on all ranks: equally many.
// receive_splits empty, on all ranks: one more collective exchanges them.
LOCKSTEP_API at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                                   at::IntArrayRef send_splits = {},
                                   at::IntArrayRef receive_splits = {},
                                   const CallOptions& options = {});

// The same into `output`; both splits are given, or neither.
LOCKSTEP_API Work all_to_all_async(const at::Tensor& output, const at::Tensor& tensor,
                                   const ProcessGroup& group, at::IntArrayRef send_splits = {},
                                   at::IntArrayRef receive_splits = {},
                                   const CallOptions& options = {});

// Messages, as ProcessGroup's; `tag` is theirs, options.label is not used. Shapes are not compared,
// only types and numbers of elements. `tensor` becomes what is received.
LOCKSTEP_API void send(const at::Tensor& tensor, const ProcessGroup& group, int peer,
                       std::int64_t tag = 0, const CallOptions& options = {});
LOCKSTEP_API Work send_async(const at::Tensor& tensor, const ProcessGroup& group, int peer,
                             std::int64_t tag = 0, const CallOptions& options = {});
LOCKSTEP_API Source recv(const at::Tensor& tensor, const ProcessGroup& group, int peer = any_source,
                         std::int64_t tag = any_tag, const CallOptions& options = {});
LOCKSTEP_API Work recv_async(const at::Tensor& tensor, const ProcessGroup& group,
                             int peer = any_source, std::int64_t tag = any_tag,
                             const CallOptions& options = {});

// Zeros in memory that all ranks of the host have mapped; collective, of one shape on all ranks.
// The tensor may outlive the group.
LOCKSTEP_API at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType dtype,
                                         const ProcessGroup& group);

// A view of `memory`, which it keeps mapped, from byte `offset` on. Strides count elements.
LOCKSTEP_API at::Tensor view_of(const RegisteredMemory& memory, std::size_t offset,
                                at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype);

// The type in which comm reduces a tensor's elements. Errors: unsupported for any other.
LOCKSTEP_API DType reducible_dtype(at::ScalarType dtype);

}  // namespace lockstep
