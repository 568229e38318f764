// The job page: what the ranks of one host, and the agent that started them, know of each other.
//
// One sealed shared mapping. Each rank has a slot in which it says what it is doing, beside a
// robust mutex that its sentinel thread holds as long as the process lives: the kernel marks that
// mutex at the very start of a process's end, before it has torn down a single page of its memory.
// The first failure of the job is recorded once; every wait in this library looks for it.
//
// Thread safety: every member may be called from any thread of any process that has it mapped,
// except where a member says otherwise.
// Blocking: nothing here blocks.

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
#include "lockstep/base/shared_mapping.h"
#include "lockstep/job/activity.h"

namespace lockstep {

class LOCKSTEP_API JobPage {
 public:
  enum class Phase : std::uint32_t {
    vacant,     // No process has taken the slot yet, or one has withdrawn.
    alive,      // A process holds it.
    finished,   // Its process left in order; it may come back.
    abandoned,  // Its process lost its group, to an exception say, and lives on.
  };

  // `world_size`: how many ranks the launcher has told its ranks of, on all hosts; 0 for `slots`.
  static JobPage create(int slots, std::string_view job_id, int world_size = 0);
  static JobPage attach(FileDescriptor fd);

  int slots() const;
  int world_size() const;
  std::string_view job_id() const;
  int descriptor() const { return mapping_.descriptor(); }

  // Takes and gives back `slot` for this process. Both must be called by the one thread that
  // stays alive in between. `how` is not alive. Errors: misuse when a living process holds it.
  void enter(int slot);
  void leave(int slot, Phase how);

  // Says at once what leave() will: that this process has lost its group. From any thread.
  void abandon(int slot) const;

  Phase phase(int slot) const;
  int pid(int slot) const;  // Of the slot's latest process; 0 when vacant.
  Activity& activity(int slot) const;

  // True once the process that held `slot` has abandoned it, or has begun to end without leave().
  bool lost(int slot) const;

  // What the process in `slot` was told of the group that it is about to make, for its peers to
  // compare. `meeting` counts such groups from 1.
  struct Told {
    int meeting = 0;
    int world_size = 0;
    std::string backend = {};
  };
  void announce(int slot, const Told& told) const;
  std::optional<Told> told(int slot, int meeting) const;  // Empty until it is announced.

  // The state of the process in `slot` as proc(5) has it, such as 'T' for a stopped one.
  char process_state(int slot) const;

  // What the process in `slot` has to say before it ends: the exception that it ends with, cut to
  // 1 KiB, and its fault when it is an Error of ours. The first words count, until the slot is
  // entered anew. Async-signal-safe.
  void say_last_words(int slot, std::string_view text, std::optional<Fault> fault = {}) const;
  std::string last_words(int slot) const;  // Empty when there are none.

  // That the process in `slot` takes SIGTERM and SIGUSR1 as the news that the job must make room,
  // and ends by itself: ProcessGroup::on_preemption().
  void expect_preemption(int slot) const;
  bool expects_preemption(int slot) const;

  // That the ranks have agreed to end for a preemption: ProcessGroup::preempted() was true.
  void agree_on_preemption() const;
  bool preemption_agreed() const;

  // Whether the kernel has killed a process for want of memory, in this job's memory cgroup, since
  // the page was made; empty when that cannot be known.
  std::optional<bool> oom_killed() const;

  // What is known of the process that held `slot`, of the signal that ended it, whether the kernel
  // killed it for want of memory, and of its last words.
  Failure examine(int slot) const;

  // That ranks which live have broken a group of the process in `slot`: a Failure with a `fault`.
  // The latest counts, until the slot is entered anew.
  void note_break(int slot, const Failure& failure) const;

  // The latest with this fault that any process noted, of those that know whose fault it is.
  std::optional<Failure> latest_break(Fault fault) const;

  // Why the process in `slot` came to its `end`: the break of its group that it noted, when it has
  // done nothing in any group since and nothing else is known to have ended it; else `end`.
  Failure cause_of(int slot, const Failure& end) const;

  // Records the job's first failure; later ones are dropped. Async-signal-safe.
  void report(const Failure& failure) const;

  // With the lost process's last words even if they came later than the report.
  std::optional<Failure> failure() const;

  // How long ago that was recorded; 0 when it was not.
  std::chrono::milliseconds since_failure() const;

 private:
  struct Layout;
  explicit JobPage(SharedMapping mapping);
  Layout& layout() const;

  SharedMapping mapping_;
};

}  // namespace lockstep
