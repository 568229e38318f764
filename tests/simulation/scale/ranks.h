// The ranks' part of a start: they connect to the store, and exchange what they need to begin.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tests/simulation/scale/store_host.h"

namespace lockstep::simulation {

class RanksMeeting {
 public:
  RanksMeeting(StoreHost& store, Simulation& simulation, int ranks)
      : store_(store), simulation_(simulation), ranks_(ranks) {}

  // All connect. Rank 0 sets a word, and all wait for it, as in bench_rendezvous. With `thread`, a
  // thread starts the others, one after the other, each at this cost.
  void meet_at_word(std::optional<Duration> thread = std::nullopt);

  // After that. As exchange_rank_info() (comm/hosts/rendezvous.cpp): each rank describes itself,
  // rank 0 collects all, and all read the table.
  void exchange_table();

  std::optional<Time> met() const { return left_ == 0 ? std::optional(last_) : std::nullopt; }
  // Why rank 0 could not set the table; empty without an error.
  const std::string& error() const { return error_; }

 private:
  void connect(int rank);
  void start_threads(int rank, Duration cost);
  void await_word(int rank);
  void collect(int rank);
  void leave();

  StoreHost& store_;
  Simulation& simulation_;
  const int ranks_;
  int left_ = 0;
  Time last_ = {};
  std::string table_;
  std::string error_;
};

}  // namespace lockstep::simulation
