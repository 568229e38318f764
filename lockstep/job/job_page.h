// The job page: shared state of one host's ranks and the agent that started them.
//
// It is one sealed shared mapping with a slot for each rank. The rank writes its activity there.
// Its sentinel thread holds a robust mutex in the slot as long as the process lives. The kernel
// marks that mutex at the very start of a process's end, before it frees any of its memory. The
// job's first failure is recorded once; every wait in this library looks for it.
//
// Thread safety: any thread of any process with the mapping may call any member, except where a
// member says otherwise.
// Blocking: memory_number() with a limit only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {

class LOCKSTEP_API JobPage {
 public:
  enum class Phase : std::uint32_t {
    vacant,     // No process has taken the slot yet, or its process has withdrawn.
    alive,      // A process holds it.
    finished,   // Its process left in order; it may come back.
    abandoned,  // Its process lost its group, for example by an exception, and still runs.
  };

  // `world_size`: number of ranks on all hosts, from the launcher; 0 means `slots`.
  static JobPage create(int slots, std::string_view job_id, int world_size = 0);
  static JobPage attach(FileDescriptor fd);

  int slots() const;
  int world_size() const;
  std::string_view job_id() const;
  int descriptor() const { return mapping_.descriptor(); }

  // Take and release `slot` for this process. One thread must call both, and live in between. `how`
  // is not alive. Errors: misuse when a living process holds the slot.
  void enter(int slot);
  void leave(int slot, Phase how);

  // Say before leave() that this process has lost its group, or has left it in order. Any thread
  // may call them.
  void abandon(int slot) const;
  void finish(int slot) const;

  Phase phase(int slot) const;
  int pid(int slot) const;  // Pid of the slot's latest process; 0 when vacant.
  Activity& activity(int slot) const;
  StepReport& step_report(int slot) const;

  // Whether the process in `slot` has abandoned it, or has begun to end without leave().
  bool lost(int slot) const;

  // Settings of the group that the process in `slot` is about to make, for its peers to compare.
  // `meeting` numbers such groups from 1.
  struct Told {
    int meeting = 0;
    int world_size = 0;
    std::string backend = {};
  };
  void announce(int slot, const Told& told) const;
  std::optional<Told> told(int slot, int meeting) const;  // Empty until announced.

  // The random number in the name of the socket on which the process in `slot` hands out memory; 0
  // before that, and once it has left in order.
  void set_memory_number(int slot, std::uint64_t number) const;
  // Waits while it is 0, for `limit` at most.
  std::uint64_t memory_number(int slot, std::chrono::nanoseconds limit = {}) const;

  // State of the process in `slot`, as in proc(5): 'T' for a stopped one.
  char process_state(int slot) const;

  // Stores the exception that ends the process in `slot`, cut to 1 KiB, and its fault if it is an
  // Error of this library. Only the first call counts, until the slot is entered anew.
  // Async-signal-safe.
  void say_last_words(int slot, std::string_view text, std::optional<Fault> fault = {}) const;
  std::string last_words(int slot) const;  // Empty when there are none.

  // Time for a rank that has called abort() to end by the exception that made it do so.
  static constexpr std::chrono::seconds time_for_cause{1};

  // Whether another process has called ProcessGroup::abort() within time_for_cause, and that in
  // `slot` later or never: the former is the likely cause of the latter's end, but may end later.
  bool follows_abort(int slot) const;

  // Records that the process in `slot` takes SIGTERM and SIGUSR1 as a request to make room, and
  // will end by itself: ProcessGroup::on_preemption().
  void expect_preemption(int slot) const;
  bool expects_preemption(int slot) const;

  // Records that the ranks have agreed to end for a preemption: ProcessGroup::preempted() was true.
  void agree_on_preemption() const;
  bool preemption_agreed() const;

  // Records that the process in `slot` waits for a group, and looks for failure() and first_end()
  // meanwhile; or else that it has joined one, and that no earlier break will be why it ends. It
  // need not have entered the slot.
  void await_group(int slot, bool waits = true) const;
  bool awaits_group(int slot) const;

  // Records how the process in `slot` ended in order, before its first group or after it had left
  // the last one: no failure, except for those that wait for it in a new one.
  void note_end(int slot, const Failure& end) const;
  std::optional<Failure> first_end() const;  // Of any slot.

  // Records that the agent has told the process in `slot` to end. That it then ends is no failure.
  void tell_to_end(int slot) const;
  bool is_told_to_end(int slot) const;

  // Whether the OOM killer has ended a process in this job's memory cgroup since the page was made;
  // empty when unknown.
  std::optional<bool> oom_killed() const;

  // Returns all that is known of the end of the process that held `slot`: the signal, the OOM
  // killer, and its last words.
  Failure examine(int slot) const;

  // Records that other ranks ended a call of the process in `slot`: a Failure with a `fault`, or of
  // a rank that `left`. The latest one counts, until the slot is entered anew; the process need not
  // have entered it.
  void note_break(int slot, const Failure& failure) const;

  // Returns the latest such record of any process with this fault and known culprits.
  std::optional<Failure> latest_break(Fault fault) const;

  // Returns why the process in `slot` came to its `end`: the break of its group that it noted, or
  // else `end`. The break, if its last words say so. Without last words, if no thread went on after
  // it (Activity::resumed). Never after a crash.
  Failure cause_of(int slot, const Failure& end) const;

  // Records the job's first failure; ignores later ones. Async-signal-safe.
  void report(const Failure& failure) const;

  // Includes the lost process's last words, even if they came after the report.
  std::optional<Failure> failure() const;

  // Returns the time since the failure was recorded; 0 without one.
  std::chrono::milliseconds since_failure() const;

 private:
  struct Layout;
  explicit JobPage(SharedMapping mapping);
  Layout& layout() const;

  SharedMapping mapping_;
};

}  // namespace lockstep
