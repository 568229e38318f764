// What each rank tells all others through the store when a job begins, and how they exchange it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct RankCard {
  int rank = 0;
  int pid = 0;
  std::string host;     // For people.
  std::string place;    // Ranks with the same one can share memory: this_place().
  std::string address;  // Of its Lines.
  std::string backend;  // Which it was asked for: InitOptions::backend.
  // Of the engines that this may come to, why they cannot run here; empty for those that can.
  std::map<std::string, std::string> engines;
  std::string contradiction = {};  // What it was told and its launcher was not; else empty.
};

// What ranks that can share memory have in common: the kernel as it was booted, the network
// namespace, in which they meet on an abstract socket, and the user. LOCKSTEP_HOST_ID, when it is
// set, takes part: ranks with different ones count as ranks of different hosts.
std::string this_place();

struct RollCall {
  std::string secret;           // That rank 0 made, and nobody else can guess.
  std::vector<RankCard> cards;  // By rank.
};

// Collective: all ranks' cards. Keys in the store begin with `prefix`. Blocking: until all have
// come.
// Errors: timeout, on all ranks and with all that are missing; corrupt; the store's.
RollCall call_the_roll(Store& store, const std::string& prefix, const RankCard& mine,
                       int world_size, Deadline deadline);

}  // namespace lockstep
