// One TCP connection per pair of ranks on different hosts, authenticated by the job's token
// (docs/internals/hosts.md).
//
// A background thread reads all connections. It detects the silent loss of a host or link within
// about 5 s. A stopped process is not lost: its kernel answers.
//
// Thread safety: any thread. Errors: system, by the calls that use the connection thread, when that
// thread has failed.

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

struct RemoteRank {
  int rank = 0;      // In the job.
  std::string host;  // For messages only.
  int pid = 0;
  std::string address;  // Its Connections::address().
};

class Channels;

class Connections {
 public:
  struct Options {
    JobMember member;
    std::optional<JobToken> token = {};   // Required beyond loopback: require_protection().
    std::string listen_on = "127.0.0.1";  // A numeric address of this host.
    std::function<void(const Failure&)> on_failure = [](const Failure&) {};
  };

  // Starts to listen. The connection thread calls `on_failure` for ranks that others report with
  // tell_failure(). Without a report, it does so about 200 ms after a peer's connection ended
  // without the peer's finish(). Errors: misuse for an address that is not this host's, or beyond
  // loopback without a token.
  explicit Connections(Options options);

  // Without finish(), peers report the end of this process. Blocking: until peers have read all
  // sent data, at most 200 ms, or 5 s if finish() was called.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Begins to end, without waiting: the destructor then waits for the rest of its time. Nothing is
  // received afterwards.
  void begin_to_end();

  std::string address() const;  // HOST:PORT of its listener.

  // Blocks until all `ranks` are connected; each rank connects to higher ranks. Call it once. Calls
  // `watch`, which may throw, every 20 ms, except for about 6 s at an unresponsive address.
  // Errors: timeout, with all missing ranks and the reasons; peer_lost for a rank that came and
  // left.
  void connect(const std::vector<RemoteRank>& ranks, Deadline deadline,
               const std::function<void()>& watch);

  // Reports a lost rank, usually of this host, to all remote ranks, which accept one report per
  // lost rank. Ignores a failure without a rank of the job.
  void tell_failure(const Failure& failure);

  // From now on the end of a connection is no failure, on both sides.
  void finish();

  bool has_peers() const;

  // Opens a group's share of the connections, after connect(); its rank r is world_ranks[r] of the
  // job. Data that arrived earlier is kept. Destroying the last copy drops data; a closed group
  // keeps eight bytes.
  // Errors: misuse for a name opened before, or with the hash of one.
  std::shared_ptr<Channels> open(const std::string& name, std::vector<int> world_ranks);

 private:
  friend class Channels;
  class Loop;
  std::shared_ptr<Loop> loop_;
};

// Ranks are the group's. Only receiving an entry blocks.
class Channels {
 public:
  virtual ~Channels() = default;

  // Entries from one rank arrive in order.
  virtual void say(int peer, std::string_view entry) = 0;

  // Waits for the next entry from `peer`. Empty at the deadline, or after `peer` has left. Time in
  // which this process was stopped extends the deadline; `peer` has at least 100 ms. Calls `watch`,
  // which may throw, every 20 ms.
  virtual std::optional<std::string> hear(int peer, Deadline deadline,
                                          const std::function<void()>& watch) = 0;

  // leave() reports to all remote ranks that this rank makes no more calls. has_left() is true once
  // a rank's report, after its data, has arrived.
  virtual void leave() = 0;
  virtual bool has_left(int peer) const = 0;

  // Notifies all remote ranks. Afterwards, leave(), abort() and reports send nothing.
  virtual void abort(const AbortReason& why) = 0;

  // Sets the callback for a remote rank's abort(), also an earlier one. Callbacks run on the
  // connection thread and must not throw or call this object. A failure of the connection thread is
  // reported as an abort with Fault::system; an earlier failure, during this call.
  virtual void on_abort(std::function<void(const AbortReason&)> act) = 0;

  // After a timeout, asks `peers`, the ranks of a host, which of them are missing from the call.
  // Those in the call abort the group and report the others.
  virtual void ask_who_is_absent(const std::vector<int>& peers) = 0;

  // Sets the callback for remote ranks' ask_who_is_absent(), also an earlier one.
  virtual void on_question(std::function<void()> act) = 0;

  // To and from remote ranks only (pipe.h). Each holds at most 1 MiB of unread data.
  virtual PipeWriter& to(int peer) = 0;
  virtual PipeReader* from(int peer) = 0;

  // Sets the callback for a pipe that has more to read, or can take more.
  virtual void on_message(std::function<void()> act) = 0;
};

}  // namespace lockstep::comm
