// The thread of a rank's connections.
//
// Thread safety: any thread, for public members.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/comm/tcp/connections.h"
#include "lockstep/comm/tcp/group_channels.h"
#include "lockstep/comm/tcp/peer_table.h"
#include "lockstep/job/store/admission.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::comm {

class Connections::Loop {
 public:
  explicit Loop(Options options);
  ~Loop();

  const JobMember& member() const { return options_.member; }
  const std::string& address() const { return address_; }

  // Ends all connections when peers have read the sent data; after finish(), at most 5 s later.
  void begin_to_end();
  void stop();  // Also waits for the end.

  PeerTable& peers() { return peers_; }

  void expect(const std::vector<RemoteRank>& ranks);

  // Tries once, for about 6 s at most.
  void try_to_connect(int rank, const SocketAddress& address, Deadline deadline);

  std::string why_not_up(int rank) const;

  std::shared_ptr<GroupChannels> open(const std::string& name, const std::vector<int>& world_ranks);
  void close(GroupChannels& group) { groups_.close(group); }

 private:
  static constexpr std::chrono::milliseconds look_interval{500};

  void run();
  void turn();
  int timeout_ms() const;
  void wake() const;
  std::optional<std::string> holder_of(const JobMember& member) const;
  void begin(int rank, FileDescriptor socket);
  void serve(int rank, const std::shared_ptr<Connection>& connection, short events);
  void hear(int rank, const std::shared_ptr<Connection>& connection, const Frame& frame);
  void hear_failure(int rank, const Frame& frame);
  void look_for_silence(Clock::time_point now);
  void fail();
  void leave();

  const Options options_;
  std::string address_;
  FileDescriptor wake_;
  std::atomic<bool> stopping_{false};

  PeerTable peers_;
  ChannelTable groups_;

  // Used by the thread only.
  std::optional<Door> door_;
  Clock::time_point looked_{};
  Thread thread_;
};

}  // namespace lockstep::comm
