// Collectives on lists of tensors whose number, shapes and types the receivers do not know, such as
// state dictionaries or batches of unequal samples.
//
//   auto weights = broadcast_tensors(group.rank() == 0 ? load(path) : Tensors{}, group);
//
// The shapes travel first, as bytes (lockstep/comm/values.h), then the elements. Received tensors
// are contiguous, in CPU memory and require no gradient. All tensors received by one call may be
// views of one block. Undefined tensors stay undefined. CUDA tensors are sent as copies in CPU
// memory, because the receiver does not know a device for them.
// Types, Autograd, Blocking, Errors: as in collectives.h; also corrupt for a description that no
// rank can have sent, before memory is allocated for it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using Tensors = std::vector<at::Tensor>;

// Returns the tensors of rank `root`. On `root` itself they are the same tensors, detached. The
// other ranks' `tensors` are ignored.
LOCKSTEP_API Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group,
                                       int root = 0, const CallOptions& options = {});

// Returns all ranks' lists, in rank order.
LOCKSTEP_API std::vector<Tensors> all_gather_tensors(const Tensors& tensors,
                                                     const ProcessGroup& group,
                                                     const CallOptions& options = {});

// As all_gather_tensors() on rank `root`; returns an empty vector on the others.
LOCKSTEP_API std::vector<Tensors> gather_tensors(const Tensors& tensors, const ProcessGroup& group,
                                                 int root = 0, const CallOptions& options = {});

// Returns list rank() of rank `root`, which passes one list for each rank. The other ranks' `lists`
// are ignored.
LOCKSTEP_API Tensors scatter_tensors(const std::vector<Tensors>& lists, const ProcessGroup& group,
                                     int root = 0, const CallOptions& options = {});

}  // namespace lockstep
