// The cards by which ranks describe themselves to all others when a job begins, and their exchange
// through the store.

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
  std::string host;     // For messages only.
  std::string place;    // Ranks with equal places can share memory: this_place().
  std::string address;  // Address of its Lines.
  std::string backend;  // InitOptions::backend of this rank.
  // Reason why each engine that the backend may use cannot run here; empty if it can.
  std::map<std::string, std::string> engines;
  std::string contradiction = {};  // A setting of this rank that contradicts its launcher; else
                                   // empty.
};

// Returns a text that is equal on ranks that can share memory: the kernel's boot id, the network
// namespace, whose abstract sockets they use, and the user. It includes LOCKSTEP_HOST_ID if set:
// ranks with different values count as ranks of different hosts.
std::string this_place();

struct RollCall {
  std::string secret;           // Made by rank 0; others cannot guess it.
  std::vector<RankCard> cards;  // By rank.
};

// Collective: returns all ranks' cards. Keys in the store begin with `prefix`. Blocking: until all
// ranks have come. Errors: timeout, on all ranks and with all missing ranks; corrupt; the store's.
RollCall call_the_roll(Store& store, const std::string& prefix, const RankCard& mine,
                       int world_size, Deadline deadline);

}  // namespace lockstep
