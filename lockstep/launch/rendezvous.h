// Agreement between a job's agents on when to start, end and restart the ranks.
//
// The agent on the endpoint's host coordinates. Agents prove the job's token, if any, to each
// other: docs/protocol.md.
//
// Thread safety: none.
// Blocking: flush(), and make_rendezvous() during a DNS query for the endpoint.

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

struct Round {
  int attempt = 0;   // Earlier starts.
  int restarts = 0;  // Earlier starts that ended in a failure.
  int node = 0;      // This host's number, kept unless nodes <= node.
  int nodes = 1;
  int first_rank = 0;  // This host's lowest rank.
  int world_size = 1;
  std::string job_id = {};  // Equal in every attempt.
  std::string master_addr = {};
  int master_port = 0;  // Rank 0 may listen on it.
  // HOST:PORT of the attempt's store; empty for a single host with OnFailure::end_all.
  std::string store = {};
};

struct StartRanks {
  Round round;
};
// After this pause, the ranks will be restarted.
struct StartLater {
  std::chrono::milliseconds pause{0};
};
// The agent replies with all_gone().
struct EndRanks {
  std::string why = {};  // "host node3 was lost".
  std::optional<Failure> failure = {};
};
struct EndJob {
  int exit_code = 0;
  std::string why = {};  // Empty if all hosts succeeded.
  std::optional<Failure> failure = {};
};
using Order = std::variant<StartRanks, StartLater, EndRanks, EndJob>;

enum class Outcome {
  succeeded,  // All exited with 0; with `continue_without`, at least one.
  preempted,  // Exited for a preemption: start the job again.
  failed,
  stopped,  // By the user, or the program cannot be started.
  left,     // The user stopped this host; others may continue.
};

// Errors: misuse for an invalid number of ranks or hosts, number of this host, or job id.
void require_hosts(const RunOptions& options);

class Rendezvous : public launch::Pollable {
 public:
  // From the environment; otherwise, for a single host with a store, random.
  const std::optional<JobToken>& token() const { return token_; }

  // Reports this agent's part of an attempt; -1 before the first one. Call it when a rank fails,
  // the last one ends or the user stops the job, and again with later details. `exit_code` is the
  // job's if it is not restarted.
  virtual void report(int attempt, Outcome outcome, int exit_code,
                      const std::optional<Failure>& failure) = 0;
  // Sent with the next report(), unless that has a failure.
  virtual void tell_times(std::vector<RankTimes> times) = 0;
  // The times of all hosts received so far; empty if another host coordinates.
  virtual std::vector<RankTimes> times() const = 0;
  // No process of the attempt is left on this host.
  virtual void all_gone(int attempt) = 0;

  // Call it after each serve().
  virtual std::vector<Order> take_orders() = 0;

  // Blocking: until all messages are sent and the job's end is received, at most `limit`.
  void flush(std::chrono::milliseconds limit);

  // Such as "waiting for hosts: 1 of 2 hosts came".
  virtual std::string state() const = 0;

 protected:
  explicit Rendezvous(const std::optional<JobToken>& token) : token_(token) {}

 private:
  virtual bool flushed() const = 0;  // All messages have been sent.

  const std::optional<JobToken> token_;
};

// For several hosts, listens at the endpoint or begins to search for the launcher that does. If the
// search exceeds options.hosts.join_timeout or finds another program, or this host is refused, the
// order is EndJob. Calls read_job_token().
// Errors: misuse for invalid hosts or endpoint, for listening beyond loopback without a job token,
// and on node 0 for a port in use; system.
std::unique_ptr<Rendezvous> make_rendezvous(const RunOptions& options);

// While it lives, reserves a port for a program whose rank 0 listens on MASTER_PORT. The kernel
// never assigns the port; only a process that sets SO_REUSEADDR, as servers do, can bind it and
// listen.
class ReservedPort {
 public:
  // `address` is numeric; port 0: any free port. Errors: misuse if the port is in use, with its
  // holder; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;
  int number_ = 0;
};

}  // namespace lockstep
