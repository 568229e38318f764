// How the agents of a job's hosts agree on when to start the ranks, to end them, and to start them
// anew.
//
// One of them, on the host of the endpoint, coordinates: it decides, and the others do. For a job
// of one host it is the same without a network. Agents prove the job's token to each other as ranks
// do to a store (docs/protocol.md), and notice within 3 s when one of them has stopped answering.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: never, but for the constructor of Rendezvous, which may ask a name server for the
// endpoint.

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
#include "lockstep/base/time.h"
#include "lockstep/job/store/job_token.h"
#include "lockstep/launch/run.h"

namespace lockstep {

class RendezvousEnd;

// One start of the ranks, as this host has to know it.
struct Round {
  int attempt = 0;   // How many starts there were before.
  int restarts = 0;  // How many of them a failure ended.
  int node = 0;      // This host's number. A host that stays keeps it, unless nodes <= node.
  int nodes = 1;
  int first_rank = 0;  // The ranks of this host are this one and those after it.
  int world_size = 1;
  std::string job_id = {};       // Of this job and no other; the same at every attempt.
  std::string master_addr = {};  // Of host 0,
  int master_port = 0;           // where its rank 0 may listen there.
  std::string store = {};        // HOST:PORT of this attempt's store; empty for a single host.
};

struct StartRanks {
  Round round;
};
struct StartLater {  // News: ranks that failed are to be started anew after this pause.
  std::chrono::milliseconds pause{0};
};
struct EndRanks {                       // Then say all_gone().
  std::string why = {};                 // For people, such as "host node3 was lost".
  std::optional<Failure> failure = {};  // Of a rank, when that is why.
};
struct EndJob {
  int exit_code = 0;
  std::string why = {};                 // Empty after success.
  std::optional<Failure> failure = {};  // The first one of the last attempt.
};
using Order = std::variant<StartRanks, StartLater, EndRanks, EndJob>;

// How a host's ranks ended, where the agent tells it.
enum class Outcome {
  succeeded,  // All with 0.
  preempted,  // All made room; the job is over and wants to be started again.
  failed,     // One of them failed.
  stopped,    // This launcher was told to end the job.
  left,       // This launcher was told to leave a job whose other hosts may go on.
};

// Errors: misuse for numbers of hosts, a number of this one and a name that cannot be.
void require_hosts(const RunOptions& options);

class Rendezvous {
 public:
  // Listens at the endpoint, or begins to look for the launcher that does: the latter goes on in
  // serve(), and ends with EndJob when there is none within options.hosts.join_timeout, or when
  // this host is turned away. Calls read_job_token().
  // Errors: misuse for hosts that cannot be, for an endpoint that is none or that is taken by
  // somebody else, and without a job token beyond loopback; system.
  explicit Rendezvous(const RunOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // What proves that a process is of this job; for the ranks.
  const std::optional<JobToken>& token() const { return token_; }

  // What this agent has to say of an attempt, -1 before the first. report() at once, when one of
  // its ranks fails or the last one succeeds, and again when more is known of that failure; the
  // exit code is what the job should end with if it is not started anew.
  void report(int attempt, Outcome outcome, int exit_code, const std::optional<Failure>& failure);
  void all_gone(
      int attempt);  // No process of it is left on this host; to be said to every EndRanks.

  // Adds what poll() has to watch; when to come back at the latest; and acts on what poll() saw,
  // returning what is to be done, in order.
  void watch(std::vector<pollfd>& entries) const;
  Deadline deadline() const;
  std::vector<Order> serve(const std::vector<pollfd>& entries);

  // Waits a little until what was said last has left this host.
  void flush(std::chrono::milliseconds limit);

  // For people: "host 1 of 3, waiting for a second one".
  std::string state() const;

 private:
  const std::optional<JobToken> token_;
  const std::unique_ptr<RendezvousEnd> end_;
};

}  // namespace lockstep
