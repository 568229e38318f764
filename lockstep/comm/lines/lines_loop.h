// The thread that serves all lines of a rank: lets peers in, reads, and notices who is lost.
//
// Thread safety: every public member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/comm/lines/group_lines.h"
#include "lockstep/comm/lines/lines.h"
#include "lockstep/job/store/door.h"
#include "lockstep/job/store/socket_address.h"

namespace lockstep {

class Lines::Loop {
 public:
  explicit Loop(Options options);
  ~Loop();

  const JobMember& member() const { return options_.member; }
  const std::string& address() const { return address_; }

  // Ends all lines, after peers have read what was sent, for which finished ones wait up to a
  // second.
  void stop();

  // Who the remote ranks are.
  void expect(const std::vector<RemoteRank>& ranks);

  // Once, for some 6 s at most.
  void try_to_connect(int rank, const SocketAddress& address, Deadline deadline);

  // Whether there is a connection, which may not have proved yet to be that rank's.
  bool has_line(int rank) const;

  // Whether there is a line, or else why there is none.
  bool is_up(int rank) const;
  std::string why_not_up(int rank) const;

  // Waits until there is a line to each that is expected; false at the deadline. `watch` is called
  // every 20 ms and may throw. Errors: peer_lost for one whose line ended; system.
  bool await_lines(Deadline deadline, const std::function<void()>& watch);

  void send_to_all(const LineFrame& frame);
  void finish();
  std::shared_ptr<GroupLines> open(const std::string& name, const std::vector<int>& world_ranks);
  void close(GroupLines& group);

 private:
  struct Peer {
    std::optional<RemoteRank> remote = {};  // Once it is expected.
    std::shared_ptr<Line> line = {};
    bool up = false;        // Its first frame has come, and said that it is that rank.
    bool ended = false;     // After that.
    bool finished = false;  // Has said so.
    bool reported = false;
    std::string why = {};  // It ended, or has not begun.
    Deadline report_at = no_deadline;
  };

  static constexpr std::chrono::milliseconds look_interval{500};

  void run();
  void turn();
  int timeout_ms() const;
  void wake() const;
  std::optional<std::string> holder_of(const JobMember& member) const;
  void begin(int rank, FileDescriptor socket);
  void serve(int rank, const std::shared_ptr<Line>& line, short events);
  void hear(int rank, const std::shared_ptr<Line>& line, const LineFrame& frame);
  void hear_first(int rank, Peer& peer, const LineFrame& frame);
  void hear_failure(int rank, const LineFrame& frame);
  void end(int rank, const std::shared_ptr<Line>& line, const std::string& why);
  void look_for_silence(Clock::time_point now);
  void report(Clock::time_point now);
  Failure failure_of(int rank) const;
  std::shared_ptr<GroupLines> group(std::uint64_t id);
  bool was_opened(std::uint64_t id) const;
  void tell_groups();
  void fail();
  void leave();
  std::vector<std::pair<int, std::shared_ptr<Line>>> open_lines() const;

  const Options options_;
  std::string address_;
  FileDescriptor wake_;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // Guards what follows, up to the thread's own.
  std::condition_variable changed_;
  std::vector<Peer> peers_;                                      // By rank.
  std::map<std::uint64_t, std::shared_ptr<GroupLines>> groups_;  // Until they are closed.
  std::vector<std::uint64_t> ever_opened_;  // Sorted; what comes for a closed one is dropped.
  std::size_t unopened_ = 0;                // Groups for which something came before open().
  std::vector<std::uint64_t> to_tell_;
  bool finished_ = false;
  std::optional<Error> failed_;  // The thread, which then has ended or will at once.

  // Of the thread alone.
  std::optional<Door> door_;
  Clock::time_point looked_{};
  Thread thread_;
};

}  // namespace lockstep
