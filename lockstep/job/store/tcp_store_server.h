// Serves the map that TcpStores of one job share, in a thread of its own.
//
//   TcpStoreServer server({.job = {.job_id = "job-7", .world_size = 8}, .token = token});
//   // tell the ranks server.port()
//
// A client must prove the job's token before anything else, on loopback too: any user of the host
// may connect there. Without a token the server checks only that ranks give the same job id, which
// is no protection. docs/protocol.md has the bytes, the limits, and what is not protected.
// Lifetime: clients' calls fail with peer_lost when the server is destroyed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/job/store/job_member.h"
#include "lockstep/job/store/job_token.h"

namespace lockstep {

struct TcpStoreServerOptions {
  // A numeric address of this host. "0.0.0.0" and "::" open the store to every network that reaches
  // this host.
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any free port. A fixed port may be in use.

  JobMember job;  // The job whose ranks may connect; `rank` does not count.
  std::optional<JobToken> token = {};

  // Whether to refuse a rank that is already connected. Off when a rank may hold several stores.
  bool refuse_duplicates = false;

  // Time from a connection to the end of its handshake. A short timeout refuses ranks of a host
  // under load.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(5);
  // Time from the first to the last byte of a request. Also the time in which a client must read
  // some byte of its replies. A short timeout refuses large values on slow networks.
  std::chrono::milliseconds frame_timeout = std::chrono::seconds(30);
};

class LOCKSTEP_API TcpStoreServer {
 public:
  // Errors: misuse for an address that is not numeric, and for a port in use, whose holder is
  // named. Misuse for an address beyond loopback without a token, unless the environment has
  // LOCKSTEP_TRUST_NETWORK=1. System when the operating system refuses.
  explicit TcpStoreServer(const TcpStoreServerOptions& options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;

 private:
  class Loop;

  const std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep
