// The state of a rank's connections: pending, connected or ended, and losses to be reported.
//
// Thread safety: any thread. Blocking: only await_all().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/tcp/connection.h"
#include "lockstep/comm/tcp/connections.h"

namespace lockstep::comm {

class PeerTable {
 public:
  // `me` is this rank.
  PeerTable(int me, int world_size);

  void expect(const std::vector<RemoteRank>& ranks);

  // False if an expected rank is missing at the deadline. Calls `watch`, which may throw, every 20
  // ms. Errors: peer_lost for a rank whose connection ended; that of fail().
  bool await_all(Deadline deadline, const std::function<void()>& watch);

  // Record an unconfirmed connection; or why there is none.
  void connect(int rank, std::shared_ptr<Connection> connection);
  void refuse(int rank, const std::string& why);

  // `frame` is the rank's first. Errors: corrupt if it does not confirm the rank.
  void confirm(int rank, const Frame& frame);

  // Perhaps unconfirmed, or ended.
  bool has_connection(int rank) const;
  bool is_up(int rank) const;

  // Why the connection ended or did not start; empty if unknown.
  std::string why_not_up(int rank) const;

  // A confirmed peer's address, or a text if it has ended. Otherwise empty: it may be replaced.
  std::optional<std::string> holder_of(int rank) const;

  // open_connections(): those that have not ended, with their ranks. lines_of(): also ended ones;
  // null for ranks without a connection.
  std::vector<std::pair<int, std::shared_ptr<Connection>>> open_connections() const;
  std::vector<std::shared_ptr<Connection>> lines_of(const std::vector<int>& ranks) const;
  void send_to_all(const Frame& frame) const;

  void finish();
  bool has_finished() const;
  void finish_peer(int rank);

  // Closes `connection`. The rank is lost if it was confirmed, has not finished and is not reported
  // yet.
  void end(int rank, const std::shared_ptr<Connection>& connection, const std::string& why);
  void close_all() const;

  // True for the first report of another rank's loss.
  bool note_failure_of(int rank);

  // Returns each loss once, when it is due; none after finish().
  std::vector<Failure> take_losses(Clock::time_point now);
  Deadline next_loss() const;

  void fail(const Error& error);

 private:
  struct Peer {
    std::optional<RemoteRank> remote = {};  // Set once it is expected.
    std::shared_ptr<Connection> connection = {};
    bool up = false;     // Its first frame has confirmed its rank.
    bool ended = false;  // After `up`.
    bool finished = false;
    bool reported = false;
    std::string why = {};
    Deadline report_at = no_deadline;
  };

  Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Failure failure_of(int rank) const;

  const int me_;

  mutable std::mutex mutex_;  // Guards the rest.
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  bool finished_ = false;
  std::optional<Error> failed_;
};

}  // namespace lockstep::comm
