// Connections between ranks on different hosts: one TCP connection per pair, authenticated by the
// job's token. They carry everything that engines do not: call descriptions before a collective,
// deaths, aborts, and messages. docs/protocol.md defines the frames.
//
// A background thread reads them all. It detects the silent loss of a host or link within about 5
// s. The kernel probes idle peers, so a stopped process does not count as lost.
//
// Thread safety: any thread may call any member at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/pipe.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep::comm {

// A rank on another host.
struct RemoteRank {
  int rank = 0;         // Rank in the job.
  std::string host;     // For messages only.
  int pid = 0;          // Pid on its host.
  std::string address;  // Connections::address() of that rank.
};

class Channels;

class Connections {
 public:
  struct Options {
    JobMember member;                     // This rank.
    std::optional<JobToken> token = {};   // Required beyond loopback: require_protection().
    std::string listen_on = "127.0.0.1";  // A numeric address of this host.
    std::function<void(const Failure&)> on_failure = [](const Failure&) {};
  };

  // Starts to listen. The connection thread calls `on_failure` for every lost remote rank: its
  // connection ended without finish(). The call comes about 200 ms later, unless a rank of its host
  // reports the cause first. Also called for reports by a remote rank's tell_failure().
  // Errors: misuse for an address that is not this host's, or beyond loopback without a token.
  explicit Connections(Options options);

  // Ends all connections. For peers that is the end of this process, unless finish() came before.
  // Blocking: until peers have read all sent data, at most 200 ms, or a second after finish().
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  std::string address() const;  // HOST:PORT of its listener.

  // Blocks until each rank is connected; each rank connects to higher ranks. Call it once. It
  // rejects unauthenticated peers, other jobs and earlier attempts, and continues to wait. Calls
  // `watch` every 20 ms, except for about 6 s at an unresponsive address; it may throw.
  // Errors: timeout, with all missing ranks and the reasons; peer_lost for a rank that came and
  // left; system when the connection thread has failed.
  void connect(const std::vector<RemoteRank>& ranks, Deadline deadline,
               const std::function<void()>& watch);

  // Reports a lost rank, usually of this host, to all remote ranks, which accept one report per
  // rank. Does nothing if the failure names no rank of the job.
  void tell_failure(const Failure& failure);

  // Reports that the job has ended in order: from now on the end of a connection is no failure, on
  // both sides.
  void finish();

  // Whether some remote rank is still connected.
  bool has_peers() const;

  // Opens a group's share of the connections; its rank r is world_ranks[r] of the job. `name` must
  // be unique. Call it after connect(), once per name. Data that arrived earlier is kept. After the
  // last copy is destroyed, data is dropped; a closed group keeps eight bytes of memory.
  // Errors: misuse for a name that was opened before; system when the connection thread has failed.
  std::shared_ptr<Channels> open(const std::string& name, std::vector<int> world_ranks);

 private:
  friend class Channels;
  class Loop;
  std::shared_ptr<Loop> loop_;
};

// One group's share of the connections. Ranks are those of the group.
class Channels {
 public:
  virtual ~Channels() = default;

  // Sends `entry` to a remote rank, which receives this rank's entries in order. Never blocks.
  virtual void say(int peer, std::string_view entry) = 0;

  // Blocks until an entry from `peer` arrives, and takes the first. Returns nothing at the
  // deadline, or after `peer` has left. Time in which this process was stopped extends the
  // deadline; `peer` has at least 100 ms. `watch` is called every 20 ms and may throw. Errors:
  // system when the connection thread has failed.
  virtual std::optional<std::string> hear(int peer, Deadline deadline,
                                          const std::function<void()>& watch) = 0;

  // leave() notifies all remote ranks that this one makes no more calls of the group. has_left()
  // returns whether a remote rank has; its data came before that. Never block.
  virtual void leave() = 0;
  virtual bool has_left(int peer) const = 0;

  // Notifies all remote ranks of the group. Never blocks; nothing is sent afterwards.
  virtual void abort(const AbortReason& why) = 0;

  // Sets the callback for a remote rank's abort(), including an earlier one. It runs on the
  // connection thread, must not throw, and must not call this object. Its ranks are those of the
  // group. A failure of the connection thread counts as Fault::system; an earlier one is reported
  // during this call.
  virtual void on_abort(std::function<void(const AbortReason&)> act) = 0;

  // Asks `peers`, the ranks of a host for which this rank no longer waits, which of them are
  // absent. Ranks that are present abort the group and report the others. Never blocks.
  virtual void ask_who_is_absent(const std::vector<int>& peers) = 0;

  // Sets the callback for ask_who_is_absent() of remote ranks, including an earlier one. It runs on
  // the connection thread, must not throw, and must not call this object.
  virtual void on_question(std::function<void()> act) = 0;

  // Pipes to and from remote ranks only: see pipe.h. Each holds 1 MiB of unread data.
  virtual Pipe& to(int peer) = 0;
  virtual Pipe* from(int peer) = 0;

  // Calls `act` on the connection thread when a pipe has more to read, or can take more. `act` must
  // not call this object.
  virtual void on_message(std::function<void()> act) = 0;
};

}  // namespace lockstep::comm
