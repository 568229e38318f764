// What a rank knows of its connections to ranks of other hosts: which are being made, which are up,
// which have ended and why, and whose loss has yet to be reported.
//
// Thread safety: any thread may call any member at any time. Blocking: only await_all().

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
#include "lockstep/comm/lines/line.h"
#include "lockstep/comm/lines/lines.h"

namespace lockstep::comm {

class PeerTable {
 public:
  // Of rank `me`.
  PeerTable(int me, int world_size);

  // Sets the remote ranks.
  void expect(const std::vector<RemoteRank>& ranks);

  // Waits until all expected ranks are connected; false at the deadline. `watch` is called every 20
  // ms and may throw. Errors: peer_lost for a rank whose connection ended; that of fail().
  bool await_all(Deadline deadline, const std::function<void()>& watch);

  // A connection to the rank was made, which has yet to prove its rank; or why it was not.
  void connect(int rank, std::shared_ptr<Line> line);
  void refuse(int rank, const std::string& why);

  // The first frame of the rank has come. Errors: corrupt if it does not confirm the rank.
  void confirm(int rank, const LineFrame& frame);

  // Whether there is a connection, which may not have proved its rank yet; and whether it has.
  bool has_line(int rank) const;
  bool is_up(int rank) const;

  // Reason why the connection ended or did not begin; empty if it is not known.
  std::string why_not_up(int rank) const;

  // The process that has the rank's connection, for people; none while it may still be replaced.
  std::optional<std::string> holder_of(int rank) const;

  // Connections that have not ended, with their ranks; and those of `ranks`, null for this host's.
  std::vector<std::pair<int, std::shared_ptr<Line>>> open_lines() const;
  std::vector<std::shared_ptr<Line>> lines_of(const std::vector<int>& ranks) const;
  void send_to_all(const LineFrame& frame) const;

  // The job has ended in order: here, and at a peer.
  void finish();
  bool has_finished() const;
  void finish_peer(int rank);

  // Closes a connection. Its rank is lost if that was confirmed and has not finished.
  void end(int rank, const std::shared_ptr<Line>& line, const std::string& why);
  void close_all() const;

  // True if the loss of a rank is news; then it counts as reported.
  bool take_news_of(int rank);

  // Losses whose time to be reported has come, each once; and when the next one's does.
  std::vector<Failure> take_losses(Clock::time_point now);
  Deadline next_loss() const;

  // The connections' thread has failed.
  void fail(const Error& error);

 private:
  struct Peer {
    std::optional<RemoteRank> remote = {};  // Set once it is expected.
    std::shared_ptr<Line> line = {};
    bool up = false;        // Its first frame has confirmed its rank.
    bool ended = false;     // Ended after that.
    bool finished = false;  // Has sent `finished`.
    bool reported = false;
    std::string why = {};  // Reason why the connection ended or did not begin.
    Deadline report_at = no_deadline;
  };

  Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  Failure failure_of(int rank) const;

  const int me_;

  mutable std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // By rank.
  bool finished_ = false;
  std::optional<Error> failed_;  // Failure of the thread, which has ended or ends at once.
};

}  // namespace lockstep::comm
