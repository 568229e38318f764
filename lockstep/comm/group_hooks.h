// Hooks into a group's life for other components.
//
// Thread safety: any thread.
// Errors: misuse in a fork()ed child, from before_end(), report_cause_of_exit() and all functions
// below it; from all but before_end() also for a destroyed group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

class StepClock;

// Before a thread destroys `group` or its parent group, it calls `act`, which the group holds
// weakly. `act` ends background work, returns when it no longer uses the group, and never throws.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

// The job's number for a rank of `group`, as in Failure::rank.
LOCKSTEP_API int job_rank(const ProcessGroup& group, int rank);

// Default of the group's calls.
LOCKSTEP_API std::chrono::milliseconds timeout_of(const ProcessGroup& group);

// For code that runs a user's calls on a background thread. If the user's thread makes another call
// after an Error, that Error is not the cause of a later exit. Call note_call() on the thread that
// submits a call, and note_failed_call() on the thread that gets its Error.
LOCKSTEP_API void note_failed_call();
LOCKSTEP_API void note_call(const ProcessGroup& group);

// Call it when this process ends without leaving `group`. Reports the rank that caused this exit,
// or this process's exception, to other hosts, once for all groups of the world.
LOCKSTEP_API void report_cause_of_exit(const ProcessGroup& group);

// Collective. The host of each rank of `group`, numbered in the order of their first ranks.
LOCKSTEP_API std::vector<int> host_of_ranks(const ProcessGroup& group);

// Bytes that this rank has passed to all_reduce(), reduce() and reduce_scatter() in all groups.
LOCKSTEP_API std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes(
    const ProcessGroup& group);

// Increments this rank's step, unless it has called ProcessGroup::set_step(). Always increments the
// step of the training loop's StepClock: `loop`, or the calling thread's, if any.
LOCKSTEP_API void count_step(const ProcessGroup& group);
LOCKSTEP_API void count_step(const ProcessGroup& group, StepClock* loop);

// The object of type T that `group` owns on this rank; made by the first call, released at the
// group's end. It must not hold a handle of the group. Not collective.
template <class T>
std::shared_ptr<T> attachment_of(const ProcessGroup& group);

LOCKSTEP_API std::shared_ptr<void> attachment_of(
    const ProcessGroup& group, const std::type_info& type,
    const std::function<std::shared_ptr<void>()>& make);

template <class T>
std::shared_ptr<T> attachment_of(const ProcessGroup& group) {
  const auto make = [] { return std::make_shared<T>(); };
  return std::static_pointer_cast<T>(attachment_of(group, typeid(T), make));
}

}  // namespace lockstep
