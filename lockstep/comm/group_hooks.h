// Calls by which the rest of the library follows a group's life: the end of a training step, the
// group's failure and its end, and objects that live as long as the group.
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

// Finishes work on a background thread before its group ends: calls `act` on the thread that
// destroys `group`, or the group it was made from, before the destruction. Only while a handle of
// `act` exists. `act` returns when it no longer uses the group, and must not throw.
LOCKSTEP_API void before_end(const ProcessGroup& group,
                             const std::shared_ptr<const std::function<void()>>& act);

// The number that the job has for a rank of `group`: that of Failure::rank.
LOCKSTEP_API int job_rank(const ProcessGroup& group, int rank);

// The time limit of calls of `group` without their own.
LOCKSTEP_API std::chrono::milliseconds timeout_of(const ProcessGroup& group);

// A thread that is thrown the Error of a call, and then makes another one, shows that the program
// goes on: a later end of the process has another cause. Where a third thread runs the calls, the
// first one is marked when it is thrown the Error. Its next call takes the mark to the thread that
// runs it. take_met_break() returns whether there was a mark.
LOCKSTEP_API void note_met_break();
LOCKSTEP_API bool take_met_break();

// This process ends without leaving `group`. If it does so for want of another rank, this tells the
// ranks of other hosts which one, once for the group and all that were made from it; of its own end
// they learn in any case. Errors: misuse for a destroyed group, and in a fork()ed child.
LOCKSTEP_API void tell_why_it_ends(const ProcessGroup& group);

// Collective. The host of each rank of `group`, numbered in the order of their first ranks.
LOCKSTEP_API std::vector<int> host_of_ranks(const ProcessGroup& group);

// The bytes that this rank has passed to all_reduce() and reduce_scatter(), in all of its groups.
// Errors: misuse for a destroyed group.
LOCKSTEP_API std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes(
    const ProcessGroup& group);

// Counts the training steps of a program that does not report them: adds one step of this rank.
// Does nothing once ProcessGroup::set_step() was called on any group of this rank. Errors: misuse
// for a destroyed group.
// The training loop's clock counts the step, too: `loop`, or the calling thread's, if it has one.
LOCKSTEP_API void count_step(const ProcessGroup& group);
LOCKSTEP_API void count_step(const ProcessGroup& group, StepClock* loop);

// The object of type T that `group` owns on this rank, which the first call makes. The group
// releases it when it is destroyed, or with its last handle, so the object must not have a handle
// of the group. Not collective. Errors: misuse for a destroyed group, and in a fork()ed child.
template <class T>
std::shared_ptr<T> companion_of(const ProcessGroup& group);

LOCKSTEP_API std::shared_ptr<void> companion_of(const ProcessGroup& group,
                                                const std::type_info& type,
                                                const std::function<std::shared_ptr<void>()>& make);

template <class T>
std::shared_ptr<T> companion_of(const ProcessGroup& group) {
  const auto make = [] { return std::make_shared<T>(); };
  return std::static_pointer_cast<T>(companion_of(group, typeid(T), make));
}

}  // namespace lockstep
