// Lets other components follow a group's life: the end of a training step, the group's failure and
// its end, and objects that live as long as the group.
//
// Thread safety: any thread.

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

// Finishes background work before its group ends: the thread that destroys `group`, or the group it
// was made from, first calls `act`. It is called only while a handle of `act` exists. `act` returns
// when it no longer uses the group, and must not throw.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

// Returns the job's number for a rank of `group`, as in Failure::rank.
LOCKSTEP_API int job_rank(const ProcessGroup& group, int rank);

// The default time limit of calls of `group`.
LOCKSTEP_API std::chrono::milliseconds timeout_of(const ProcessGroup& group);

// A thread that gets a call's Error, and then makes another call, shows that the program continues.
// A later end of the process then has another cause. Where another thread runs the calls, mark the
// first thread when it gets the Error. Its next call moves the mark to the thread that runs that
// call. take_met_break() returns whether there was a mark.
LOCKSTEP_API void note_met_break();
LOCKSTEP_API bool take_met_break();

// Call it when this process ends without leaving `group`. If the cause is another rank, it reports
// that rank to the ranks of other hosts, once for all groups of the world. They detect the end of
// this process itself. Errors: misuse for a destroyed group, and in a fork()ed child.
LOCKSTEP_API void tell_why_it_ends(const ProcessGroup& group);

// Collective. Returns the host of each rank of `group`, numbered in the order of their first ranks.
LOCKSTEP_API std::vector<int> host_of_ranks(const ProcessGroup& group);

// Returns the bytes that this rank has passed to all_reduce() and reduce_scatter(), in all groups.
// Errors: misuse for a destroyed group.
LOCKSTEP_API std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes(
    const ProcessGroup& group);

// Counts a training step for a program that does not report steps. Does nothing after
// ProcessGroup::set_step() was called on any group of this rank. The clock of the training loop
// counts the step too: `loop`, or the calling thread's, if any. Errors: misuse for a destroyed
// group.
LOCKSTEP_API void count_step(const ProcessGroup& group);
LOCKSTEP_API void count_step(const ProcessGroup& group, StepClock* loop);

// Returns the object of type T that `group` owns on this rank; the first call makes it. The group
// releases it when it is destroyed, or with its last handle. The object must not hold a handle of
// the group. Not collective. Errors: misuse for a destroyed group, and in a fork()ed child.
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
