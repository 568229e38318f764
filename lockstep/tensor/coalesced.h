// Collectives on lists of tensors: one call for each element type instead of one for each tensor.
//
//   all_reduce_coalesced(gradients, world, ReduceOp::average);
//
// Results equal those of one call for each tensor, bit for bit. Tensors of one type and device are
// copied together into buffers of at most 32 MiB on that device. A contiguous tensor is used in
// place if it fills such a buffer alone, or if it is the only one of its type.
// All ranks must pass the same shapes, types and kinds of device, in the same order. Tensors to be
// reduced may not share memory; this is refused as misuse if neither of the two has gaps. An empty
// list, or a list of empty tensors, communicates nothing.
// Types, Autograd, Blocking, Errors: as in collectives.h. Nothing is sent before every tensor of
// the list has been checked.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Replaces each element by the combination of all ranks' elements.
LOCKSTEP_API void all_reduce_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum,
                                       const CallOptions& options = {});

// As all_reduce_coalesced(), but only the tensors of rank `root` are written.
LOCKSTEP_API void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root = 0,
                                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// Replaces the tensors by those of rank `root`.
LOCKSTEP_API void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                      int root = 0, const CallOptions& options = {});

}  // namespace lockstep
