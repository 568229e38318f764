// Collectives on lists of tensors.
//
//   all_reduce_coalesced(gradients, world, ReduceOp::average);
//   auto weights = broadcast_tensors(group.rank() == 0 ? load(path) : Tensors{}, group);
//
// Types, Autograd, Blocking, Errors: as in collectives.h. All tensors are checked before any is
// sent.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// --- Lists whose shapes all ranks know: one call for each element type ---------------------------

// Results equal those of one call per tensor, bit for bit. Tensors of one type and device are
// copied into buffers of at most 32 MiB. A contiguous tensor that fills a buffer alone, or is the
// only one of its type, is used in place. Empty lists and empty tensors communicate nothing.
// All ranks pass the same shapes, types and kinds of device, in the same order. Tensors to be
// reduced may not share memory; this is misuse if neither of the two has gaps.

LOCKSTEP_API void all_reduce_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum,
                                       const CallOptions& options = {});

// As all_reduce_coalesced(), but writes only the tensors of rank `root`.
LOCKSTEP_API void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root = 0,
                                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// Replaces the tensors by those of rank `root`.
LOCKSTEP_API void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                      int root = 0, const CallOptions& options = {});

// --- Lists whose number, shapes and types the receivers do not know ------------------------------

// The shapes are sent first, then the elements. Received tensors are contiguous, in CPU memory,
// require no gradient, and may be views of one block. Undefined tensors stay undefined. CUDA
// tensors arrive in CPU memory, because the receiver cannot infer a device.
// Errors: also corrupt for a description that no rank can have sent, before memory is allocated for
// it.

using Tensors = std::vector<at::Tensor>;

// Returns the tensors of rank `root`, which gets its own, detached. The other ranks' are ignored.
LOCKSTEP_API Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group,
                                       int root = 0, const CallOptions& options = {});

// Returns all ranks' lists, in rank order.
LOCKSTEP_API std::vector<Tensors> all_gather_tensors(const Tensors& tensors,
                                                     const ProcessGroup& group,
                                                     const CallOptions& options = {});

// As all_gather_tensors() on rank `root`; empty on the others.
LOCKSTEP_API std::vector<Tensors> gather_tensors(const Tensors& tensors, const ProcessGroup& group,
                                                 int root = 0, const CallOptions& options = {});

// Returns list rank() of rank `root`, which passes one per rank. The others' `lists` are ignored.
LOCKSTEP_API Tensors scatter_tensors(const std::vector<Tensors>& lists, const ProcessGroup& group,
                                     int root = 0, const CallOptions& options = {});

}  // namespace lockstep
