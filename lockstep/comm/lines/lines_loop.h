// The thread that serves all connections of a rank: accepts peers, reads, and notices lost ranks.
//
// Thread safety: any thread may call any public member at any time.

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

  // Ends all connections after peers have read the sent data. Finished ranks wait up to a second
  // for that.
  void stop();

  // Sets the remote ranks.
  void expect(const std::vector<RemoteRank>& ranks);

  // Tries once, for about 6 s at most.
  void try_to_connect(int rank, const SocketAddress& address, Deadline deadline);

  // Whether there is a connection, which may not have proved its rank yet.
  bool has_line(int rank) const;

  // Whether the rank is connected, and otherwise the reason.
  bool is_up(int rank) const;
  std::string why_not_up(int rank) const;

  // Waits until all expected ranks are connected; false at the deadline. `watch` is called every 20
  // ms and may throw. Errors: peer_lost for a rank whose connection ended; system.
  bool await_lines(Deadline deadline, const std::function<void()>& watch);

  void send_to_all(const LineFrame& frame);
  void finish();
  std::shared_ptr<GroupLines> open(const std::string& name, const std::vector<int>& world_ranks);
  void close(GroupLines& group);

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

  mutable std::mutex mutex_;  // Guards the members below, up to the thread's own.
  std::condition_variable changed_;
  std::vector<Peer> peers_;                                      // By rank.
  std::map<std::uint64_t, std::shared_ptr<GroupLines>> groups_;  // Until they are closed.
  std::vector<std::uint64_t> ever_opened_;  // Sorted; data for a closed one is dropped.
  std::size_t unopened_ = 0;                // Number of groups with data but no open() yet.
  std::vector<std::uint64_t> to_tell_;
  bool finished_ = false;
  std::optional<Error> failed_;  // Failure of the thread, which has ended or ends at once.

  // The members below belong to the thread.
  std::optional<Door> door_;
  Clock::time_point looked_{};
  Thread thread_;
};

}  // namespace lockstep
