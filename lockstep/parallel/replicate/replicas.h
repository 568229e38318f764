// Checks that a module's replicas are equal, broadcasts one rank's, and runs actions on rank 0.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Collective. Errors: mismatch, on every rank, if a line differs from rank 0's. `of_what` is the
// subject of the Error's text, such as "the modules differ: rank 0 has LINE, rank 1 has LINE".
void require_same_lines(const std::string& lines, const std::string& of_what,
                        const ProcessGroup& group);

// Collective. Errors: mismatch, on every rank, for different names, types, shapes, requires_grad,
// kinds of device, or strides of trained tensors. The Error has the first difference and its rank.
LOCKSTEP_API void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group);

// Collective. Errors: misuse on every rank, naming a parameter of which ranks have different parts.
void require_same_parts(const NamedTensors& parameters, const ProcessGroup& group);

// Errors: unsupported for trained parameters on several devices.
void require_one_device(const NamedTensors& parameters);

// Collective. Errors: mismatch, on every rank, with the first option that differs.
void require_same_options(const DistributedDataParallelOptions& options, const ProcessGroup& group);

// Collective. Replaces tensors by those of rank `root`. Tensors of one type share broadcasts of up
// to 32 MiB. Errors: as broadcast_coalesced(); mismatch for different names or orders.
LOCKSTEP_API void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group,
                                    int root = 0);

// Collective: runs `action` on rank 0 while the others wait. Returns null on success, otherwise the
// exception that the caller must throw. Rank 0 gets that of `action`, the others Error(aborted),
// whose text has `what` and the first line of that exception.
std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action);

}  // namespace lockstep::parallel
