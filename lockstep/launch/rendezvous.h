// Agreement between the agents of a job's hosts on when to start, end and restart the ranks.
//
// The agent on the endpoint's host coordinates. Agents prove the job's token to each other
// (docs/protocol.md), and detect within 3 s when one of them stops responding.
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
  int attempt = 0;   // Earlier starts.
  int restarts = 0;  // Earlier starts that ended in a failure.
  int node = 0;      // This host's number, which it keeps unless nodes <= node.
  int nodes = 1;
  int first_rank = 0;  // Lowest rank of this host.
  int world_size = 1;
  std::string job_id = {};  // Equal in every attempt.
  std::string master_addr = {};
  int master_port = 0;     // Rank 0 may listen on it.
  std::string store = {};  // HOST:PORT of this attempt's store; empty for a single host.
};

struct StartRanks {
  Round round;
};
// Failed ranks will be restarted after this pause.
struct StartLater {
  std::chrono::milliseconds pause{0};
};
// The agent replies to this order with all_gone().
struct EndRanks {
  std::string why = {};  // Such as "host node3 was lost".
  std::optional<Failure> failure = {};
};
struct EndJob {
  int exit_code = 0;
  std::string why = {};  // Empty after success.
  std::optional<Failure> failure = {};
};
using Order = std::variant<StartRanks, StartLater, EndRanks, EndJob>;

enum class Outcome {
  succeeded,  // All exited with 0.
  preempted,  // All exited for a preemption: start the job again.
  failed,
  stopped,  // The user requested the end of the job.
  left,     // As `stopped`, but other hosts may continue.
};

// Errors: misuse for an invalid number of hosts, number of this host, or job id.
void require_hosts(const RunOptions& options);

class Rendezvous final : public launch::Pollable {
 public:
  // Listens at the endpoint, or begins to search for the launcher that listens there. If the search
  // exceeds options.hosts.join_timeout, or this host is refused, the order is EndJob. Calls
  // read_job_token().
  // Errors: misuse for invalid hosts, and for an endpoint that is invalid, in use by another
  // program, or beyond loopback without a job token; system.
  explicit Rendezvous(const RunOptions& options);
  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const std::optional<JobToken>& token() const { return token_; }

  // Reports this agent's part of an attempt; -1 before the first one. Call it when a rank fails or
  // the last one succeeds, and again with later details. `exit_code` is the job's if it is not
  // restarted.
  void report(int attempt, Outcome outcome, int exit_code, const std::optional<Failure>& failure);
  // For the next report() without a failure.
  void tell_times(std::vector<RankTimes> times);
  // The times of all hosts received so far; empty if another host coordinates.
  std::vector<RankTimes> times() const;
  // No process of the attempt is left on this host; due after every EndRanks.
  void all_gone(int attempt);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;

  // Call it after each serve().
  std::vector<Order> take_orders();

  // Blocking: until all messages are sent, at most `limit`.
  void flush(std::chrono::milliseconds limit);

  // Such as "host 1 of 3, waiting for a second one".
  std::string state() const;

 private:
  const std::optional<JobToken> token_;
  const std::unique_ptr<launch::RendezvousEnd> end_;
};

// While it lives, reserves a port for a program whose rank 0 listens on MASTER_PORT. The kernel
// never assigns the port. Only a process that sets SO_REUSEADDR, as servers do, can bind it and
// listen.
class ReservedPort {
 public:
  // `address` is numeric; port 0 means any free port. Errors: misuse if the port is in use, with
  // its holder; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;
  int number_ = 0;
};

}  // namespace lockstep
