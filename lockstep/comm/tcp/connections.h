// Connections between ranks on different hosts: one TCP connection per pair, authenticated by the
// job's token (docs/internals/hosts.md).
//
// A background thread reads them all. It detects the silent loss of a host or link within about 5
// s. A stopped process does not count as lost, because its kernel answers.
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
  // tell_failure(). It also calls it about 200 ms after a connection ended without finish() and
  // without such a report.
  // Errors: misuse for an address that is not this host's, or beyond loopback without a token.
  explicit Connections(Options options);

  // For peers the end of this process, unless finish() came before. Blocking: until peers have read
  // all sent data, at most 200 ms, or a second after finish().
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  std::string address() const;  // HOST:PORT of its listener.

  // Blocks until each rank is connected; each rank connects to higher ranks. Call it once. It calls
  // `watch`, which may throw, every 20 ms, except for about 6 s at an unresponsive address.
  // Errors: timeout, with all missing ranks and the reasons; peer_lost for a rank that came and
  // left; system when the connection thread has failed.
  void connect(const std::vector<RemoteRank>& ranks, Deadline deadline,
               const std::function<void()>& watch);

  // Reports a lost rank, usually of this host, to all remote ranks, which accept one report per
  // rank. Ignores a failure without a rank of the job.
  void tell_failure(const Failure& failure);

  // From now on the end of a connection is no failure, on both sides.
  void finish();

  bool has_peers() const;

  // Opens a group's share of the connections; its rank r is world_ranks[r] of the job. Call it
  // after connect(). Earlier data is kept. After the last copy is destroyed, data is dropped; a
  // closed group keeps eight bytes.
  // Errors: misuse for a name that was opened before; system when the connection thread has failed.
  std::shared_ptr<Channels> open(const std::string& name, std::vector<int> world_ranks);

 private:
  friend class Channels;
  class Loop;
  std::shared_ptr<Loop> loop_;
};

// Ranks are those of the group. Only receiving an entry blocks.
class Channels {
 public:
  virtual ~Channels() = default;

  // The remote rank receives this rank's entries in order.
  virtual void say(int peer, std::string_view entry) = 0;

  // Waits for the next entry from `peer`. Empty at the deadline, or after `peer` has left. Time in
  // which this process was stopped extends the deadline; `peer` has at least 100 ms. `watch` is
  // called every 20 ms and may throw. Errors: system when the connection thread has failed.
  virtual std::optional<std::string> hear(int peer, Deadline deadline,
                                          const std::function<void()>& watch) = 0;

  // leave() reports to all remote ranks that this one makes no more calls of the group. has_left()
  // is true once a rank's report, after its data, has arrived.
  virtual void leave() = 0;
  virtual bool has_left(int peer) const = 0;

  // Notifies all remote ranks. Nothing is sent afterwards.
  virtual void abort(const AbortReason& why) = 0;

  // Sets the callback for a remote rank's abort(), also an earlier one. Callbacks run on the
  // connection thread and must not throw or call this object. A failure of the connection thread
  // counts as Fault::system; an earlier one is reported during this call.
  virtual void on_abort(std::function<void(const AbortReason&)> act) = 0;

  // Asks `peers`, the ranks of a host for which this rank no longer waits, which of them are
  // absent. Those present abort the group and report the others.
  virtual void ask_who_is_absent(const std::vector<int>& peers) = 0;

  // Sets the callback for remote ranks' ask_who_is_absent(), also an earlier one.
  virtual void on_question(std::function<void()> act) = 0;

  // To and from remote ranks only: see pipe.h. Each holds 1 MiB of unread data.
  virtual Pipe& to(int peer) = 0;
  virtual Pipe* from(int peer) = 0;

  // Sets the callback for a pipe that has more to read, or can take more.
  virtual void on_message(std::function<void()> act) = 0;
};

}  // namespace lockstep::comm
