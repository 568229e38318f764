// Lists of tensors whose number, shapes and types the receivers need not know: state dictionaries,
// batches of unequal samples.
//
//   auto weights = broadcast_tensors(group.rank() == 0 ? load(path) : Tensors{}, group);
//
// First the shapes travel, as bytes (lockstep/comm/bytes.h), then the elements. Received tensors
// are contiguous, in CPU memory and require no gradient; those that one call receives may be views
// of one block. An undefined tensor stays one. Of tensors on a CUDA device copies in CPU memory
// travel: a receiver could not know where to put others.
// Types, Autograd, Blocking, Errors: as in collectives.h; corrupt for a description of tensors that
// no rank can have sent, before memory is taken for them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using Tensors = std::vector<at::Tensor>;

// Rank `root`'s tensors: there the same ones, detached. The others' are not looked at.
LOCKSTEP_API Tensors broadcast_tensors(const Tensors& tensors, const ProcessGroup& group,
                                       int root = 0, const CallOptions& options = {});

// All ranks' lists, in the order of the ranks.
LOCKSTEP_API std::vector<Tensors> all_gather_tensors(const Tensors& tensors,
                                                     const ProcessGroup& group,
                                                     const CallOptions& options = {});

// The same on rank `root`; nothing on the others.
LOCKSTEP_API std::vector<Tensors> gather_tensors(const Tensors& tensors, const ProcessGroup& group,
                                                 int root = 0, const CallOptions& options = {});

// List rank() of rank `root`'s, which are one for each rank. The others' are not looked at.
LOCKSTEP_API Tensors scatter_tensors(const std::vector<Tensors>& lists, const ProcessGroup& group,
                                     int root = 0, const CallOptions& options = {});

}  // namespace lockstep
