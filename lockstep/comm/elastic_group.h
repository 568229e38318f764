// A group whose ranks change: when some die, the others continue in a new group, and new processes
// join it. lockstep/train/survival.h uses it for training.
//
// Processes find each other through the job's store, which must outlive all ranks: `lockstep run
// --on-failure continue` serves it. Each group has a generation, from 0. Two groups never
// continue at the same time, even if the network is partitioned
// (docs/internals/survival.md).
//
// Thread safety: one thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

class Error;

namespace comm {
class ElasticRuntime;
}

struct ElasticOptions {
  // Options of every group. `name` must be empty. `environment` is this process's place at its
  // start.
  InitOptions init = {};

  // Wait for a living rank that does not call agree(). Then the others continue without it.
  // `lockstep run --leave-out-stragglers` reduces it, and init.timeout for calls of the groups.
  std::chrono::milliseconds patience = std::chrono::seconds(30);

  // The ranks continue while at least this many are left.
  int least = 1;

  // Number of earlier processes in this rank's place; if not 0, this process joins the current
  // group. Negative: earlier_starts().
  int incarnation = -1;
};

// A rank's training steps when the group changes.
struct StepProgress {
  std::int64_t completed = 0;
  std::int64_t prepared = 0;  // `completed`, or one more if the next step needs no other rank.
  bool leaves = false;
  bool has_state = true;  // Otherwise it counts as a process that joins.
};

class LOCKSTEP_API ElasticGroup {
 public:
  // Blocking: until the store is reachable. Errors: misuse without a store or a launcher's rank;
  // those of TcpStore.
  explicit ElasticGroup(const ElasticOptions& options = {});

  // For simulations: `runtime` must outlive it.
  ElasticGroup(const ElasticOptions& options, comm::ElasticRuntime& runtime);

  // Leaves the group.
  ~ElasticGroup();
  ElasticGroup(const ElasticGroup&) = delete;
  ElasticGroup& operator=(const ElasticGroup&) = delete;

  struct Change {
    // The step that every rank can reach alone: over all ranks, the larger of the maximum of
    // StepProgress::completed and the minimum of StepProgress::prepared.
    std::int64_t completed = 0;

    // By new rank: the rank in the group before, or -1 for a process that joins; these are last. In
    // a new process, other numbers have no meaning.
    std::vector<int> former_ranks = {};

    bool joins = false;     // This rank needs the state of the others.
    bool has_left = false;  // This rank is no member, as it asked; see also agree().
  };

  // Collective among the group's living ranks: agrees on the next generation. A process that joins
  // waits until the group admits it, or returns `has_left` after SIGTERM or SIGUSR1. Errors:
  // peer_lost if fewer than `least` ranks or none with the state are left, or the store has ended.
  // aborted if the others continue without this rank or, in a process that joins, after finish().
  // timeout if ranks are missing from the first agreement.
  Change agree(const StepProgress& progress);

  // Collective among the ranks that agreed: makes the group, and leaves the one before. After an
  // Error for which can_continue_after() is true, call agree() again.
  void form();

  ProcessGroup& group();
  int generation() const;

  // On rank 0: whether processes wait to join. False on other ranks.
  bool has_arrivals() const;

  // Reports that the job is complete. Other ranks do not wait for this one in later changes, and
  // processes that wait to join stop.
  void finish();

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// For each rank of `after`: the rank that the same process had in `before`, or -1. Both are worlds
// or subgroups of one ElasticGroup, of any generations; this process may have left either. Not
// collective.
// Errors: misuse for another group.
LOCKSTEP_API std::vector<int> former_ranks(const ProcessGroup& before, const ProcessGroup& after);

// Recreates `group` from `world`, the group of a later generation: a subgroup of the members that
// are left, in their order. Collective over them. This process may have left `group`. The new group
// is called "WORLD.NAME", with the name before the first shrink().
// Errors: misuse for groups outside an ElasticGroup; those of ProcessGroup::group_of(). After
// peer_lost, call agree() and form(), then shrink() with the same `group` and the next world. Other
// members may pass the group that they made meanwhile.
LOCKSTEP_API ProcessGroup shrink(const ProcessGroup& group, const ProcessGroup& world,
                                 const CallOptions& options = {});

// Whether the remaining ranks of a group can continue: peer_lost, timeout and aborted.
LOCKSTEP_API bool can_continue_after(const Error& error);

}  // namespace lockstep
