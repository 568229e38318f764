// Makes the replicas of a module equal: checks that this is possible, broadcasts, and applies rank
// 0's changes to all.

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

// Collective. Errors: mismatch, on every rank, if a line differs from rank 0's. The text is "the
// modules differ: rank 0 has LINE, rank 1 has LINE" for "the modules".
void require_same_lines(const std::string& lines, const std::string& of_what,
                        const ProcessGroup& group);

// Collective. Errors: mismatch, on every rank, if names, types, shapes, strides, kinds of device or
// requires_grad flags differ from rank 0's. The message names the first such tensor and its rank.
LOCKSTEP_API void require_same_tensors(const NamedTensors& tensors, const ProcessGroup& group);

// Collective. Errors: misuse, on every rank, with its name, if ranks hold different parts of a
// parameter. Values and gradients of parts must not be made equal.
void require_same_parts(const NamedTensors& parameters, const ProcessGroup& group);

// Errors: unsupported, with two of them, if parameters that require a gradient are on several
// devices.
void require_one_device(const NamedTensors& parameters);

// Collective. Errors: mismatch, on every rank, with the first option that differs.
void require_same_options(const DistributedDataParallelOptions& options, const ProcessGroup& group);

// Collective. Replaces every tensor by that of rank `root`, in one broadcast for each element type
// and 32 MiB.
// Errors: as broadcast_coalesced(); mismatch if names or their order differ between ranks.
LOCKSTEP_API void broadcast_replica(const NamedTensors& tensors, const ProcessGroup& group,
                                    int root = 0);

// Collective: runs `action` on rank 0 while the others wait. Returns null if it succeeds. If it
// throws, returns the exception that every rank must throw. On rank 0 this is the same exception,
// on the others Error(aborted) with its text after `what`.
std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action);

}  // namespace lockstep::parallel
