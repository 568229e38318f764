// The job control block: shared memory of one host's ranks and their agent, with a slot for each
// rank.
//
// While a rank's process runs, its liveness thread holds a robust mutex in the slot, by which peers
// detect its death: docs/internals/failures.md. Every wait in this library checks for the job's
// first failure.
//
// Thread safety: any thread of any process with the mapping may call any member.
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

class LOCKSTEP_API JobControlBlock {
 public:
  enum class Phase : std::uint32_t {
    vacant,  // No process has taken the slot, or its process has withdrawn.
    alive,
    finished,   // Its process left in order; it may return.
    abandoned,  // Its process lost its group and still runs.
  };

  // `world_size`: the launcher's number of ranks on all hosts; 0 means `slots`.
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

  // Set the phase before leave(): this process has lost its group, or has left it in order.
  void abandon(int slot) const;
  void finish(int slot) const;

  Phase phase(int slot) const;
  int pid(int slot) const;  // The latest process's pid; 0 when vacant.
  Activity& activity(int slot) const;
  StepReport& step_report(int slot) const;

  // Whether the slot's process has abandoned it, or is exiting without leave().
  bool lost(int slot) const;

  // Settings of the group that a process is creating, for its peers. `meeting` numbers such groups
  // from 1.
  struct Announced {
    int meeting = 0;
    int world_size = 0;
    std::string backend = {};
  };
  void announce(int slot, const Announced& announced) const;
  std::optional<Announced> announced(int slot, int meeting) const;  // Empty before announce().

  // A random part of the name of the socket from which the process sends its memory. 0 before it is
  // set, and after the process has left in order.
  void set_memory_number(int slot, std::uint64_t number) const;
  // Waits while it is 0, for `limit` at most.
  std::uint64_t memory_number(int slot, std::chrono::nanoseconds limit = {}) const;

  char process_state(int slot) const;  // As in proc(5): 'T' if stopped.

  // Stores the process's exit report: its exception, cut to 1 KiB, and its fault if it is an Error.
  // Only the first call counts until a process enters the slot again. Async-signal-safe.
  void write_exit_report(int slot, std::string_view text, std::optional<Fault> fault = {}) const;
  std::string exit_report(int slot) const;

  // Within this time, a rank that called abort() should exit with the exception that caused it.
  static constexpr std::chrono::seconds time_for_cause{1};

  // Whether another process called ProcessGroup::abort() within time_for_cause, and that of `slot`
  // later or never. The first abort is then the likely cause of its end.
  bool follows_abort(int slot) const;

  // Records that the process handles SIGTERM and SIGUSR1 as a request to save and exit.
  void expect_preemption(int slot) const;
  bool expects_preemption(int slot) const;

  // Records that the ranks have agreed to exit: ProcessGroup::preempted() was true.
  void agree_on_preemption() const;
  bool preemption_agreed() const;

  // Records that the process, which may not have entered the slot, waits for a group and checks
  // failure() and first_end(). Without `waits`: it has joined a group, so no earlier break is the
  // cause of its end.
  void await_group(int slot, bool waits = true) const;
  bool awaits_group(int slot) const;

  // Records that the process exited in order before its first group or after its last one. Only
  // ranks that wait for it in a new group fail.
  void note_end(int slot, const Failure& end) const;
  std::optional<Failure> first_end() const;

  // Records that the agent requested the process to end: its end is then no failure.
  void tell_to_end(int slot) const;
  bool is_told_to_end(int slot) const;

  // Whether the OOM killer has ended a process in this memory cgroup since create(); empty when
  // unknown.
  std::optional<bool> oom_killed() const;

  // The end of the slot's last process: signal or exit code, OOM kill, exit report.
  Failure examine(int slot) const;

  // Records that other ranks made a call of the process fail: a Failure with a `fault`, or of a
  // rank that `left`. The latest counts until a process enters the slot. The process may not have
  // entered it.
  void note_break(int slot, const Failure& failure) const;

  // The latest such record of any process with this fault and known culprits.
  std::optional<Failure> latest_break(Fault fault) const;

  // Why the process ended: its recorded break, or else `end`. The break counts if the exit report
  // has the same fault, or, without a report, if no thread made another call after it
  // (Activity::resumed). Never after a crash.
  Failure cause_of(int slot, const Failure& end) const;

  // Records the first failure; ignores later ones. Async-signal-safe.
  void report(const Failure& failure) const;

  // Includes the lost process's exit report, even if it arrived after report().
  std::optional<Failure> failure() const;

  // The time since the failure was recorded; 0 without one.
  std::chrono::milliseconds since_failure() const;

 private:
  struct Layout;
  explicit JobControlBlock(SharedMapping mapping);
  Layout& layout() const;

  SharedMapping mapping_;
};

}  // namespace lockstep
