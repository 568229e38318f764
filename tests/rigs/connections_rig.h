// Ranks that act as if each were on its own host: several Connections in one process, over
// loopback.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/tcp/connections.h"

namespace lockstep::test {

// Failures that one rank's on_failure has received.
class HeardFailures {
 public:
  std::function<void(const Failure&)> listener();

  // Waits for the first failure; empty at the deadline.
  std::optional<Failure> await_first(Deadline deadline) const;
  std::vector<Failure> all() const;

 private:
  struct State;
  std::shared_ptr<State> state_ = make_state();
  static std::shared_ptr<State> make_state();
};

JobMember member_of(int rank, int world_size);

class ConnectionTeam {
 public:
  // Creates the members, which are not connected yet.
  explicit ConnectionTeam(int size, const std::string& listen_on = "127.0.0.1");

  int size() const { return static_cast<int>(connections_.size()); }
  comm::Connections& operator[](int rank) { return *connections_[static_cast<std::size_t>(rank)]; }
  const HeardFailures& failures(int rank) const { return heard_[static_cast<std::size_t>(rank)]; }

  // Returns all ranks but `rank`.
  std::vector<comm::RemoteRank> remote(int rank) const;

  void connect();
  std::vector<std::shared_ptr<comm::Channels>> open(const std::string& name);
  void end(int rank) { connections_[static_cast<std::size_t>(rank)].reset(); }

 private:
  std::vector<HeardFailures> heard_;
  std::vector<std::unique_ptr<comm::Connections>> connections_;
  std::vector<std::string> addresses_;
};

void nothing();  // Does nothing while waiting.

}  // namespace lockstep::test
