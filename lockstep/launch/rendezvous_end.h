// Implementations of Rendezvous.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep::launch {

// `addresses` are as resolved on this host.
struct Endpoint {
  std::string host;
  int port = 0;
  std::vector<SocketAddress> addresses;
};

// 128 random bits as 32 hexadecimal digits, unique among jobs.
std::string random_job_id();

// Errors: misuse.
Endpoint parse_endpoint(const std::string& text);

std::unique_ptr<Rendezvous> make_single_end(const RunOptions& options,
                                            const std::optional<JobToken>& token);

// `listener` listens at `address`, one of the endpoint's addresses.
std::unique_ptr<Rendezvous> make_coordinating_end(const RunOptions& options,
                                                  const std::optional<JobToken>& token,
                                                  const Endpoint& endpoint,
                                                  const SocketAddress& address,
                                                  FileDescriptor listener);

// `taken_here`: a process on this host, perhaps another launcher of the job, uses the endpoint's
// port.
std::unique_ptr<Rendezvous> make_joining_end(const RunOptions& options,
                                             const std::optional<JobToken>& token,
                                             const Endpoint& endpoint, bool taken_here);

}  // namespace lockstep::launch
