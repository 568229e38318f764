// The job control block: shared memory of one host's ranks and their agent, with a slot for each
// rank.
//
// A rank's liveness thread holds a robust mutex in the slot, by which peers detect its death:
// docs/internals/failures.md. Every wait in this library checks for the job's first failure.
//
// Thread safety: any thread of any process with the mapping.
// Blocking: memory_number() with a limit; enter(), oom_killed() and examine() for a second at most,
// if another process is stopped in this class.

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

class LOCKSTEP_API JobControlBlock {
 public:
  enum class Phase : std::uint32_t {
    vacant,  // Not taken, or its process has withdrawn.
    alive,
    finished,   // Left in order; the process may return.
    abandoned,  // Lost its group but still runs.
  };

  // `world_size`: on all hosts; 0 means `slots`.
  static JobControlBlock create(int slots, std::string_view job_id, int world_size = 0);
  static JobControlBlock attach(FileDescriptor fd);

  int slots() const;
  int world_size() const;
  std::string_view job_id() const;
  int descriptor() const { return mapping_.descriptor(); }

  // Take and release `slot`, on one thread, which must not end in between. `how` is not alive.
  // Errors: misuse when a running process holds the slot.
  void enter(int slot);
  void leave(int slot, Phase how);

  // Set the phase before leave(): the process has lost its group, or left it in order.
  void abandon(int slot) const;
  void finish(int slot) const;

  Phase phase(int slot) const;
  int pid(int slot) const;  // The latest process's; 0 when vacant.
  Activity& activity(int slot) const;
  StepReport& step_report(int slot) const;

  // The process has abandoned the slot, or is exiting without leave().
  bool lost(int slot) const;

  // Settings of the group that a process is creating, for its peers. `meeting` numbers these groups
  // from 1.
  struct Announced {
    int meeting = 0;
    int world_size = 0;
    std::string backend = {};
  };
  void announce(int slot, const Announced& announced) const;
  std::optional<Announced> announced(int slot, int meeting) const;  // Empty before announce().

  // A random number in the name of the process's FdBroker socket. 0 before it is set, and after the
  // process has left in order.
  void set_memory_number(int slot, std::uint64_t number) const;
  // While 0, waits for `limit` at most.
  std::uint64_t memory_number(int slot, std::chrono::nanoseconds limit = {}) const;

  char process_state(int slot) const;  // As in proc(5): 'T' if stopped.

  // Stores the process's exit report: its exception, cut to 1 KiB, and its fault if it is an Error.
  // Only the first call counts until a process enters the slot again. Async-signal-safe.
  void write_exit_report(int slot, std::string_view text, std::optional<Fault> fault = {}) const;
  std::string exit_report(int slot) const;

  // A rank that calls abort() because of an exception should exit with it within this time.
  static constexpr std::chrono::seconds time_for_cause{1};

  // Whether another process called ProcessGroup::abort() less than time_for_cause ago, and before
  // any such call of `slot`'s process. That abort is then the likely cause of the end.
  bool follows_abort(int slot) const;

  // Records that the process handles SIGTERM and SIGUSR1 as a request to save and exit.
  void expect_preemption(int slot) const;
  bool expects_preemption(int slot) const;

  // Records that the ranks have agreed to exit: ProcessGroup::preempted() was true.
  void agree_on_preemption() const;
  bool preemption_agreed() const;

  // Records that the process, which may not have entered the slot, waits for a group and checks
  // failure() and first_end(). Without `waits`: it has joined a group, so no earlier note_break()
  // caused its end.
  void await_group(int slot, bool waits = true) const;
  bool awaits_group(int slot) const;

  // The agent records that the process exited in order before its first group or after its last
  // one. Only ranks that wait for it in a new group fail.
  void note_end(int slot, const Failure& end) const;
  std::optional<Failure> first_end() const;

  // Records that the agent requested the process's end, which is then no failure.
  void tell_to_end(int slot) const;
  bool is_told_to_end(int slot) const;

  // Whether the OOM killer has ended `pid`, a process of the slot killed by SIGKILL. True if this
  // memory cgroup had an OOM kill since the previous such death. Empty when unknown. All processes
  // get the first call's verdict.
  std::optional<bool> oom_killed(int slot, int pid) const;

  // Signal or exit code, OOM kill, exit report of the slot's last process.
  Failure examine(int slot) const;

  // Records a break: other ranks made a call of the process fail. `failure` has a `fault`, or its
  // rank `left` or exited in order. The latest counts until a process enters the slot. The process
  // need not have entered it.
  void note_break(int slot, const Failure& failure) const;

  // Any process's latest note_break() with this fault and known culprits.
  std::optional<Failure> latest_break(Fault fault) const;

  // Why the process ended: its note_break(), or else `end`. The break counts if the exit report has
  // the same fault. Without a report, it counts unless a thread that received the Error made
  // another call (Activity::resumed). Never after a crash.
  Failure cause_of(int slot, const Failure& end) const;

  // Records the first failure; ignores later ones. Async-signal-safe.
  void report(const Failure& failure) const;

  // With the lost process's exit report, even if it arrived after report().
  std::optional<Failure> failure() const;

  // Since report(); 0 before it.
  std::chrono::milliseconds since_failure() const;

 private:
  struct Layout;
  explicit JobControlBlock(SharedMapping mapping);
  Layout& layout() const;

  SharedMapping mapping_;
};

}  // namespace lockstep
