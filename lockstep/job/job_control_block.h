// The job control block: shared memory of one host's ranks and their agent.
//
// It is one sealed mapping with a slot for each rank, to which the rank writes its activity. While
// the process runs, its liveness thread holds a robust mutex in the slot. The kernel marks that
// mutex at the very start of a process's exit, before it frees any memory. The job's first failure
// is recorded once; every wait in this library checks for it.
//
// Thread safety: any thread of any process with the mapping may call any member, unless stated
// otherwise.
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
    vacant,     // No process has taken the slot yet, or its process has withdrawn.
    alive,      // A process holds it.
    finished,   // Its process left in order; it may return.
    abandoned,  // Its process lost its group, for example by an exception, and still runs.
  };

  // `world_size`: number of ranks on all hosts, from the launcher; 0 means `slots`.
  static JobControlBlock create(int slots, std::string_view job_id, int world_size = 0);
  static JobControlBlock attach(FileDescriptor fd);

  int slots() const;
  int world_size() const;
  std::string_view job_id() const;
  int descriptor() const { return mapping_.descriptor(); }

  // Take and release `slot` for this process. The same thread must call both, and must not end in
  // between. `how` is not alive. Errors: misuse when a running process holds the slot.
  void enter(int slot);
  void leave(int slot, Phase how);

  // Set the phase before leave(): this process has lost its group, or has left it in order. Any
  // thread may call them.
  void abandon(int slot) const;
  void finish(int slot) const;

  Phase phase(int slot) const;
  int pid(int slot) const;  // Pid of the slot's latest process; 0 when vacant.
  Activity& activity(int slot) const;
  StepReport& step_report(int slot) const;

  // Whether the process in `slot` has abandoned it, or is exiting without leave().
  bool lost(int slot) const;

  // Settings of the group that the process in `slot` is creating, for comparison by its peers.
  // `meeting` numbers such groups from 1.
  struct Announced {
    int meeting = 0;
    int world_size = 0;
    std::string backend = {};
  };
  void announce(int slot, const Announced& announced) const;
  std::optional<Announced> announced(int slot, int meeting) const;  // Empty before announce().

  // The process in `slot` sends its memory from a socket whose name contains this random number. 0
  // before that, and after it has left in order.
  void set_memory_number(int slot, std::uint64_t number) const;
  // Waits while it is 0, for `limit` at most.
  std::uint64_t memory_number(int slot, std::chrono::nanoseconds limit = {}) const;

  // State of the process in `slot`, as in proc(5): 'T' if stopped.
  char process_state(int slot) const;

  // Stores the exit report of the process in `slot`: its exception, cut to 1 KiB, and its fault if
  // it is an Error of this library. Only the first call counts, until a process enters the slot
  // again. Async-signal-safe.
  void write_exit_report(int slot, std::string_view text, std::optional<Fault> fault = {}) const;
  std::string exit_report(int slot) const;  // The exit report's text; empty without one.

  // Time within which a rank that called abort() should exit with the exception that caused the
  // abort.
  static constexpr std::chrono::seconds time_for_cause{1};

  // Whether another process called ProcessGroup::abort() within time_for_cause, and the process in
  // `slot` did so later or never. The former is then the likely cause of the latter's end, but may
  // end later.
  bool follows_abort(int slot) const;

  // Records that the process in `slot` handles SIGTERM and SIGUSR1 as a request to save and exit:
  // ProcessGroup::on_preemption().
  void expect_preemption(int slot) const;
  bool expects_preemption(int slot) const;

  // Records that the ranks have agreed to exit for a preemption: ProcessGroup::preempted() was
  // true.
  void agree_on_preemption() const;
  bool preemption_agreed() const;

  // Records that the process in `slot` waits for a group and checks failure() and first_end()
  // meanwhile. With `waits` false: that it has joined a group, so that no earlier break is the
  // cause of its end. The process may not have entered the slot.
  void await_group(int slot, bool waits = true) const;
  bool awaits_group(int slot) const;

  // Records that the process in `slot` exited in order before its first group or after it left its
  // last one. This is a failure only for ranks that wait for it in a new group.
  void note_end(int slot, const Failure& end) const;
  std::optional<Failure> first_end() const;  // From any slot.

  // Records that the agent requested the process in `slot` to end. Its end is then not a failure.
  void tell_to_end(int slot) const;
  bool is_told_to_end(int slot) const;

  // Whether the OOM killer has ended a process in this job's memory cgroup since the block was
  // created; empty when unknown.
  std::optional<bool> oom_killed() const;

  // Returns what is known of the end of the process that held `slot`: signal or exit code, OOM
  // kill, exit report.
  Failure examine(int slot) const;

  // Records that other ranks made a call of the process in `slot` fail: a Failure with a `fault`,
  // or of a rank that `left`. The latest record counts, until a process enters the slot again. The
  // process may not have entered the slot.
  void note_break(int slot, const Failure& failure) const;

  // Returns the latest such record of any process with this fault and known culprits.
  std::optional<Failure> latest_break(Fault fault) const;

  // Returns why the process in `slot` ended: its recorded break, or else `end`. It is the break if
  // the exit report has the same fault. Without an exit report, it is the break if no thread made
  // another call after it (Activity::resumed). Never the break after a crash.
  Failure cause_of(int slot, const Failure& end) const;

  // Records the job's first failure; ignores later ones. Async-signal-safe.
  void report(const Failure& failure) const;

  // Includes the lost process's exit report, even if it arrived after report().
  std::optional<Failure> failure() const;

  // Returns the time since the failure was recorded; 0 without one.
  std::chrono::milliseconds since_failure() const;

 private:
  struct Layout;
  explicit JobControlBlock(SharedMapping mapping);
  Layout& layout() const;

  SharedMapping mapping_;
};

}  // namespace lockstep
