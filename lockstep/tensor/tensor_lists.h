// Collectives on lists of tensors.
//
//   all_reduce_coalesced(gradients, world, ReduceOp::average);
//   auto weights = broadcast_tensors(group.rank() == 0 ? load(path) : Tensors{}, group);
//
// Types, Autograd, Blocking, Errors: as in collectives.h. All tensors are checked first.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// --- Lists whose shapes all ranks know -----------------------------------------------------------

// Results equal those of one call per tensor, bit for bit. Tensors of one type and device are
// copied into buffers of at most 32 MiB, one call each. A contiguous tensor that is alone in its
// buffer is used in place. Empty lists and tensors communicate nothing.
// All ranks pass the same shapes, types and kinds of device, in the same order. Reduced tensors may
// not overlap in memory: misuse if both are dense, otherwise unchecked.

LOCKSTEP_API void all_reduce_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                       ReduceOp op = ReduceOp::sum,
                                       const CallOptions& options = {});

// Writes only the tensors of rank `root`.
LOCKSTEP_API void reduce_coalesced(at::TensorList tensors, const ProcessGroup& group, int root = 0,
                                   ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// Replaces the tensors by those of rank `root`.
LOCKSTEP_API void broadcast_coalesced(at::TensorList tensors, const ProcessGroup& group,
                                      int root = 0, const CallOptions& options = {});

// --- Lists whose number, shapes and types the receivers do not know ------------------------------

// The shapes are sent first, then the elements. Received tensors are contiguous, in CPU memory even
// if sent from CUDA, require no gradient, and may be views of one block. Undefined tensors stay
// undefined.
// Errors: also corrupt, before allocating memory, for a description that no rank can send.

using Tensors = std::vector<at::Tensor>;

// Returns the tensors of rank `root`, which gets its own, detached. Ignores the other ranks'.
LOCKSTEP_API Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group,
                                       int root = 0, const CallOptions& options = {});

// Returns all ranks' lists, in rank order.
LOCKSTEP_API std::vector<Tensors> all_gather_tensors(const Tensors& tensors,
                                                     const ProcessGroup& group,
                                                     const CallOptions& options = {});

// As all_gather_tensors() on rank `root`; empty on the others.
LOCKSTEP_API std::vector<Tensors> gather_tensors(const Tensors& tensors, const ProcessGroup& group,
                                                 int root = 0, const CallOptions& options = {});

// Returns lists[rank()] of rank `root`, which passes one per rank. Ignores the others' `lists`.
LOCKSTEP_API Tensors scatter_tensors(const std::vector<Tensors>& lists, const ProcessGroup& group,
                                     int root = 0, const CallOptions& options = {});

}  // namespace lockstep
