// Makes the replicas of a module equal: checks, broadcasts, and applies rank 0's changes to all.

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

// Collective. Errors: mismatch, on every rank, if a line differs from rank 0's. For "the modules":
// "the modules differ: rank 0 has LINE, rank 1 has LINE".
void require_same_lines(const std::string& lines, const std::string& of_what,
                        const ProcessGroup& group);

// Collective. Errors: mismatch, on every rank, if names, types, shapes, strides, kinds of device or
// requires_grad flags differ from rank 0's. It names the first such tensor and its rank.
LOCKSTEP_API void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group);

// Collective. Errors: misuse, on every rank, with its name, if ranks hold different parts of a
// parameter.
void require_same_parts(const NamedTensors& parameters, const ProcessGroup& group);

// Errors: unsupported if parameters that require a gradient are on several devices.
void require_one_device(const NamedTensors& parameters);

// Collective. Errors: mismatch, on every rank, with the first option that differs.
void require_same_options(const DistributedDataParallelOptions& options, const ProcessGroup& group);

// Collective. Replaces tensors by those of rank `root`, in a broadcast per element type and 32 MiB.
// Errors: as broadcast_coalesced(); mismatch if names or their order differ between ranks.
LOCKSTEP_API void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group,
                                    int root = 0);

// Collective: runs `action` on rank 0 while the others wait. Returns null or, if it throws, what
// every rank must throw. On rank 0 this is the same exception, on the others Error(aborted) with
// its text after `what`.
std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action);

}  // namespace lockstep::parallel
