// The rendezvous of a job's ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/hosts/late_ranks.h"
#include "lockstep/job/host_session.h"
#include "lockstep/job/store/store.h"

namespace lockstep::comm {

// --- On one host ---------------------------------------------------------------------------------

// Errors: mismatch, with the settings that differ, when present ranks of this host disagree on the
// number of ranks or the backend. Blocking: only then, until all ranks of this host have come, for
// at most 2 s.
void require_agreement(HostSession& session);

// As require_agreement(), until all have come. Errors: also timeout, with the missing ranks;
// peer_lost.
void await_agreement(HostSession& session, Deadline deadline, LateRanks& late);

// Warns of late ranks of this host.
void look_here(HostSession& session, LateRanks& late);

bool is_shared_memory(std::string_view backend);

// --- In the store --------------------------------------------------------------------------------

// Collective: returns a name, equal on all ranks of this start of the job and never used before.
// For a store that outlives a start, such as torchrun's: its agents' counts of restarts may differ.
// Ranks of an earlier start must have ended. Keys begin with `prefix`.
// Blocking: until all have come.
// Errors: timeout, on all ranks and with all missing ranks; corrupt; the store's. Mismatch when two
// processes are the same rank, or expect different numbers of ranks. Ranks that rank 0 does not
// expect wait until 2 s after the deadline. Before it throws, rank 0 waits up to 2 s until the
// others have read the reason: the store may end with rank 0.
std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline, LateRanks& late);

struct RankInfo {
  int rank = 0;
  int pid = 0;
  std::string host;          // For messages only.
  std::string place;         // this_place().
  std::string address = {};  // Set once its Connections are open.
  std::string backend;
  // Why each engine that the backend may use cannot run here; empty if it can.
  std::map<std::string, std::string> engines;
  std::string contradiction = {};
};

// Equal on ranks that can share memory: the kernel's boot id, the user, the network namespace, and
// LOCKSTEP_HOST_ID if set.
std::string this_place();

struct RankTable {
  std::string secret;           // Made by rank 0; outsiders cannot guess it.
  std::vector<RankInfo> ranks;  // By rank.
};

// Collective: returns the descriptions of all ranks. Blocking: until all have come. Errors:
// timeout, on all ranks, with the missing ones if rank 0 has come; misuse for a rank that another
// process has; corrupt; the store's.
RankTable exchange_rank_info(Store& store, const std::string& prefix, const RankInfo& mine,
                             int world_size, Deadline deadline, LateRanks& late);

}  // namespace lockstep::comm
