// Agreement between the agents of a job's hosts on when to start, end and restart the ranks.
//
// The agent on the endpoint's host coordinates: it decides, and the others obey. A job of one host
// works the same way without a network. Agents prove the job's token to each other as ranks do to a
// store (docs/protocol.md). They notice within 3 s when one of them has stopped answering.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: only Rendezvous's constructor, which may ask a name server for the endpoint.

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

// One start of the ranks, as seen by this host.
struct Round {
  int attempt = 0;   // Number of earlier starts.
  int restarts = 0;  // Number of earlier starts that a failure ended.
  int node = 0;      // This host's number. A host that stays keeps it, unless nodes <= node.
  int nodes = 1;
  int first_rank = 0;  // Lowest rank of this host; its other ranks follow.
  int world_size = 1;
  std::string job_id = {};       // Unique to this job; the same at every attempt.
  std::string master_addr = {};  // Address of host 0.
  int master_port = 0;           // Port of `master_addr` that rank 0 may listen on.
  std::string store = {};        // HOST:PORT of this attempt's store; empty for a single host.
};

struct StartRanks {
  Round round;
};
// Notice: ranks that failed will be restarted after this pause.
struct StartLater {
  std::chrono::milliseconds pause{0};
};
// Order to end the ranks; the agent answers with all_gone().
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

// Outcome of one host's ranks, as its agent reports it.
enum class Outcome {
  succeeded,  // All ended with 0.
  preempted,  // All ended for a preemption; the job is over and is to be started again.
  failed,     // A rank failed.
  stopped,    // This launcher was told to end the job.
  left,       // This launcher was told to leave a job whose other hosts may go on.
};

// Errors: misuse for an invalid number of hosts, number of this host, or job id.
void require_hosts(const RunOptions& options);

class Rendezvous final : public launch::Pollable {
 public:
  // Listens at the endpoint, or begins to look for the launcher that does. serve() continues the
  // search. The order is EndJob if none is found within options.hosts.join_timeout, or if this host
  // is turned away. Calls read_job_token().
  // Errors: misuse for invalid hosts, for an endpoint that is invalid or taken by another program,
  // and for an endpoint beyond loopback without a job token; system.
  explicit Rendezvous(const RunOptions& options);
  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Proof for the ranks that a process belongs to this job.
  const std::optional<JobToken>& token() const { return token_; }

  // Reports this agent's part of an attempt; -1 before the first one. To be called as soon as a
  // rank fails or the last one succeeds, and again when more is known of that failure. `exit_code`
  // is the job's if it is not restarted.
  void report(int attempt, Outcome outcome, int exit_code, const std::optional<Failure>& failure);
  // Tells the times of this host's ranks; they go with the next report(), unless it is of a
  // failure.
  void tell_times(std::vector<RankTimes> times);
  // Returns those of all hosts, as far as they have come; empty if another host coordinates.
  std::vector<RankTimes> times() const;
  // Reports that no process of the attempt is left on this host; due after every EndRanks.
  void all_gone(int attempt);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;

  // Returns the new orders, in order. To be called after each serve().
  std::vector<Order> take_orders();

  // Waits at most `limit` until all messages have left this host.
  void flush(std::chrono::milliseconds limit);

  // For people: "host 1 of 3, waiting for a second one".
  std::string state() const;

 private:
  const std::optional<JobToken> token_;
  const std::unique_ptr<launch::RendezvousEnd> end_;
};

// A TCP port of this host that is kept free for one job: for programs whose rank 0 listens on
// MASTER_PORT.
//
// During its lifetime the kernel gives the port only to a process that asks for it with
// SO_REUSEADDR, as servers do: that process may bind it and listen. The kernel never chooses it as
// a free port.
class ReservedPort {
 public:
  // `address` is a numeric address of this host; port 0 means any free port. Errors: misuse, with
  // the process that listens there already; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;  // Bound, but never listening.
  int number_ = 0;
};

}  // namespace lockstep
