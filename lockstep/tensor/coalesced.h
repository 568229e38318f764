// Collectives on lists of tensors, as few as there are element types instead of one for each.
//
//   all_reduce_coalesced(gradients, world, ReduceOp::average);
//
// Equal to one call for each tensor, bit for bit. Tensors of one type and device are copied
// together into buffers of at most 32 MiB, on that device; one that fills such a buffer alone, and
// a type's only one, are worked on where they lie, if contiguous.
// Shapes, types and kinds of device of all tensors, in their order, must be the same on all ranks.
// No two tensors that are reduced may share memory: that is misuse where neither's has gaps. An
// empty list, and one of empty tensors, communicates nothing.
// Types, Autograd, Blocking, Errors: as in collectives.h. Nothing is sent before every tensor of
// the list was found fit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Each element becomes the combination of all ranks'.
LOCKSTEP_API void all_reduce_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum,
                                       const CallOptions& options = {});

// As all_reduce_coalesced(), but only rank `root`'s tensors are written.
LOCKSTEP_API void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root = 0,
                                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// The tensors become those of rank `root`.
LOCKSTEP_API void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                      int root = 0, const CallOptions& options = {});

}  // namespace lockstep
