// Collectives on tensors.
//
// Memory: contiguous CPU tensors are worked on in place. Others are copied first and, when the
// collective writes to them, copied back; the _async forms refuse them. Tensors made by
// registered_zeros() are not copied at all.
// Types: float32, float64, int64 and bfloat16 can be reduced, every type can be moved.
// Autograd: nothing is recorded.
// Thread safety, Blocking, Errors: as ProcessGroup's. The _async forms keep the tensor alive.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

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

// All ranks' tensors, of shape [group.size(), *tensor.sizes()]; the shape is the same on all ranks.
LOCKSTEP_API at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group,
                                   const CallOptions& options = {});

// The same into `output`, which is contiguous and of that shape.
LOCKSTEP_API Work all_gather_async(const at::Tensor& output, const at::Tensor& tensor,
                                   const ProcessGroup& group, const CallOptions& options = {});

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
