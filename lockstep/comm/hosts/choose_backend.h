// Which backend a job gets, from what all of its ranks say: the same answer on each of them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/hosts/rank_card.h"

namespace lockstep {

struct BackendChoice {
  std::string name = {};      // As InitOptions::backend names it: never "auto".
  std::string engine = {};    // Empty when there is none.
  bool shares_memory = true;  // Among ranks of one place.
  std::string why = {};       // For people.
  std::vector<int> places;    // By rank: the first rank of the same place.
};

// Of the engines that `backend`, or "auto", may come to, the best first. `under_mpi`: this process
// was started by an MPI launcher, or has an MPI communicator. Errors: misuse for what names no
// backend.
std::vector<std::string> engines_for(std::string_view backend, bool under_mpi);

// Errors: mismatch when ranks ask for different backends, or were told what their launcher was not;
// unsupported when some rank lacks what it needs, with its reason.
BackendChoice choose_backend(const std::vector<RankCard>& cards);

}  // namespace lockstep
