// Implementations of Rendezvous, with the same contracts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

class RendezvousEnd : public Pollable {
 public:
  virtual void report(int attempt, Outcome outcome, int exit_code,
                      const std::optional<Failure>& failure) = 0;
  virtual void tell_times(std::vector<RankTimes> times) = 0;
  virtual std::vector<RankTimes> times() const = 0;
  virtual void all_gone(int attempt) = 0;
  virtual std::vector<Order> take_orders() = 0;
  virtual bool flushed() const = 0;  // All messages have been sent.
  virtual std::string state() const = 0;
};

// `addresses` are as resolved on this host.
struct Endpoint {
  std::string host;
  int port = 0;
  std::vector<SocketAddress> addresses;
};

// 128 random bits as 32 hexadecimal digits: no two jobs have the same id.
std::string random_job_id();

// Errors: misuse.
Endpoint parse_endpoint(const std::string& text);

// For a job of one host.
std::unique_ptr<RendezvousEnd> make_single_end(const RunOptions& options);

// `listener` listens at `address`, one of the endpoint's addresses.
std::unique_ptr<RendezvousEnd> make_coordinating_end(const RunOptions& options,
                                                     const std::optional<JobToken>& token,
                                                     const Endpoint& endpoint,
                                                     const SocketAddress& address,
                                                     FileDescriptor listener);

// `taken_here`: a process on this host, perhaps another launcher of the job, uses the endpoint's
// port.
std::unique_ptr<RendezvousEnd> make_joining_end(const RunOptions& options,
                                                const std::optional<JobToken>& token,
                                                const Endpoint& endpoint, bool taken_here);

}  // namespace lockstep::launch
