// Agreement between the agents of a job's hosts on when to start, end and restart the ranks.
//
// The agent on the endpoint's host coordinates: it decides, and the others execute its orders. A
// job of one host works the same way without a network. Agents prove the job's token to each other
// as ranks do to a store (docs/protocol.md). They detect within 3 s when one of them stops
// responding.
//
// Thread safety: none; used by the thread of its poll() loop.
// Blocking: only Rendezvous's constructor, during a DNS query for the endpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/run.h"

namespace lockstep {

namespace launch {
class RendezvousEnd;
}

// One start of the ranks on this host.
struct Round {
  int attempt = 0;   // Number of earlier starts.
  int restarts = 0;  // Number of earlier starts that ended in a failure.
  int node = 0;      // This host's number, which it keeps unless nodes <= node.
  int nodes = 1;
  int first_rank = 0;  // Lowest rank of this host; its others follow.
  int world_size = 1;
  std::string job_id = {};       // Unique to this job; equal in every attempt.
  std::string master_addr = {};  // Address of host 0.
  int master_port = 0;           // Port of `master_addr` that rank 0 may listen on.
  std::string store = {};        // HOST:PORT of this attempt's store; empty for a single host.
};

struct StartRanks {
  Round round;
};
// Notice: failed ranks will be restarted after this pause.
struct StartLater {
  std::chrono::milliseconds pause{0};
};
// Order to end the ranks; the agent replies with all_gone().
struct EndRanks {
  std::string why = {};                 // For people, such as "host node3 was lost".
  std::optional<Failure> failure = {};  // A rank's failure, if that is the reason.
};
struct EndJob {
  int exit_code = 0;
  std::string why = {};                 // Empty after success.
  std::optional<Failure> failure = {};  // First failure of the last attempt.
};
using Order = std::variant<StartRanks, StartLater, EndRanks, EndJob>;

// Outcome of one host's ranks, reported by its agent.
enum class Outcome {
  succeeded,  // All exited with 0.
  preempted,  // All exited for a preemption: start the job again.
  failed,     // A rank failed.
  stopped,    // This launcher was requested to end the job.
  left,       // This launcher was requested to leave a job whose other hosts may continue.
};

// Errors: misuse for an invalid number of hosts, number of this host, or job id.
void require_hosts(const RunOptions& options);

class Rendezvous final : public launch::Pollable {
 public:
  // Listens at the endpoint, or begins to search for the launcher that listens there; serve()
  // continues the search. The order is EndJob if the search exceeds options.hosts.join_timeout, or
  // if this host is refused. Calls read_job_token().
  // Errors: misuse for invalid hosts, for an endpoint that is invalid or in use by another program,
  // and for an endpoint beyond loopback without a job token; system.
  explicit Rendezvous(const RunOptions& options);
  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Proves to the ranks that a process belongs to this job.
  const std::optional<JobToken>& token() const { return token_; }

  // Reports this agent's part of an attempt; -1 before the first one. Call it when a rank fails or
  // the last one succeeds, and again when more of that failure is known. `exit_code` is the job's
  // if it is not restarted.
  void report(int attempt, Outcome outcome, int exit_code, const std::optional<Failure>& failure);
  // Sets the times of this host's ranks, which the next report() without a failure includes.
  void tell_times(std::vector<RankTimes> times);
  // Returns the times of all hosts received so far; empty if another host coordinates.
  std::vector<RankTimes> times() const;
  // Reports that no process of the attempt is left on this host; due after every EndRanks.
  void all_gone(int attempt);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;

  // Returns the new orders, in order. Call it after each serve().
  std::vector<Order> take_orders();

  // Waits at most `limit` until all messages have left this host.
  void flush(std::chrono::milliseconds limit);

  // For people: "host 1 of 3, waiting for a second one".
  std::string state() const;

 private:
  const std::optional<JobToken> token_;
  const std::unique_ptr<launch::RendezvousEnd> end_;
};

// A TCP port of this host that is reserved for one job, for programs whose rank 0 listens on
// MASTER_PORT.
//
// While this object exists, only a process that requests the port with SO_REUSEADDR, as servers do,
// may bind it and listen. The kernel never assigns it as a free port.
class ReservedPort {
 public:
  // `address` is a numeric address of this host; port 0 means any free port. Errors: misuse if the
  // port is in use, with its holder; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;  // Bound, but never listening.
  int number_ = 0;
};

}  // namespace lockstep
