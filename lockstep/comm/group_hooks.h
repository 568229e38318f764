// Hooks into a group's life for other components.
//
// Thread safety: any thread may call any function.
// Errors: tell_why_it_ends(), and the functions that follow it, throw misuse for a destroyed group
// and in a fork()ed child.

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

// The thread that destroys `group` or its parent group first calls `act`, if a handle of it still
// exists. `act` ends background work, returns when it no longer uses the group, and must not throw.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

// The job's number for a rank of `group`, as in Failure::rank.
LOCKSTEP_API int job_rank(const ProcessGroup& group, int rank);

// The default timeout of calls of `group`.
LOCKSTEP_API std::chrono::milliseconds timeout_of(const ProcessGroup& group);

// For code that runs calls on another thread than the caller's: moves the mark of
// group/met_break.h. Mark the thread that gets a call's Error. When it makes its next call, move
// the mark to the thread that runs that call. take_met_break() clears the mark and returns whether
// it was set.
LOCKSTEP_API void note_met_break();
LOCKSTEP_API bool take_met_break();

// Call it when this process ends without leaving `group`. If another rank is the cause, reports
// that rank to other hosts, once for all groups of the world.
LOCKSTEP_API void tell_why_it_ends(const ProcessGroup& group);

// Collective. The host of each rank of `group`, numbered in the order of their first ranks.
LOCKSTEP_API std::vector<int> host_of_ranks(const ProcessGroup& group);

// Bytes that this rank has passed to all_reduce() and reduce_scatter() in all groups.
LOCKSTEP_API std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes(
    const ProcessGroup& group);

// Counts a training step, unless this rank has called ProcessGroup::set_step(). The training loop's
// clock always counts it: `loop`, or the calling thread's, if any.
LOCKSTEP_API void count_step(const ProcessGroup& group);
LOCKSTEP_API void count_step(const ProcessGroup& group, StepClock* loop);

// The object of type T that `group` owns on this rank; the first call makes it, the group's end
// releases it. It must not hold a handle of the group. Not collective.
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
