// The rendezvous of a job's ranks: checks that ranks of a host have equal settings, identifies this
// start of the job, and exchanges the ranks' descriptions.
//
// Ranks of one host agree through its job control block; everything else goes through the job's
// store. Keys in the store begin with `prefix`.

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

// Compares the settings of the ranks of one host, the number of ranks and the backend, before some
// wait for others that never come.
// Errors: mismatch, with the ranks and each one's settings, when those that have come differ.
// Blocking: only before that Error, for at most 2 s, until all have come and can see it too.
void require_agreement(HostSession& session);

// Like require_agreement(). Blocking: until all ranks have come. Errors: also timeout, with those
// that did not; peer_lost.
void await_agreement(HostSession& session, Deadline deadline, LateRanks& late);

// Warns of late ranks of this host.
void look_here(HostSession& session, LateRanks& late);

// Whether ranks of one host with this `backend` need only shared memory.
bool is_shared_memory(std::string_view backend);

// --- In the store --------------------------------------------------------------------------------

// Identifies one start of a job, in a store that outlives the ranks of a start, such as torchrun's.
// The store still has values of earlier starts. A launcher's count of restarts does not identify a
// start: each of torchrun's agents has its own count, which excludes changes of hosts. Collective:
// returns a name that all ranks of this start get, and no others ever had. Ranks of an earlier
// start must have ended; their values do no harm.
// Blocking: until all have come.
// Errors: timeout, on all ranks and with all missing ranks; corrupt; the store's. Mismatch when two
// processes are the same rank, or expect different numbers of ranks. Ranks that rank 0 does not
// expect wait until the deadline instead. Rank 0 throws when the others have the reason, or 3 s
// later, because the store may end with it.
std::string agree_on_start(Store& store, const std::string& prefix, int rank, int world_size,
                           Deadline deadline, LateRanks& late);

// A rank's description of itself for all others when a job begins.
struct RankInfo {
  int rank = 0;
  int pid = 0;
  std::string host;          // For messages only.
  std::string place;         // Ranks with equal places can share memory: this_place().
  std::string address = {};  // Address of its Connections, once they are open.
  std::string backend;       // InitOptions::backend of this rank.
  // Why each engine that the backend may use cannot run here; empty if it can.
  std::map<std::string, std::string> engines;
  std::string contradiction = {};  // A setting that contradicts its launcher, or empty.
};

// Returns a text that is equal on ranks that can share memory. It contains the kernel's boot id,
// the user, and the network namespace, whose abstract sockets they use. It includes
// LOCKSTEP_HOST_ID if set: ranks with different values count as ranks of different hosts.
std::string this_place();

struct RankTable {
  std::string secret;           // Made by rank 0; others cannot guess it.
  std::vector<RankInfo> ranks;  // By rank.
};

// Collective: returns the descriptions of all ranks. Blocking: until all ranks have come. Errors:
// timeout, on all ranks and with all missing ranks; corrupt; the store's.
RankTable exchange_rank_info(Store& store, const std::string& prefix, const RankInfo& mine,
                             int world_size, Deadline deadline, LateRanks& late);

}  // namespace lockstep::comm
