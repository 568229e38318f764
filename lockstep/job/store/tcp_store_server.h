// Keeps the map that TcpStores of one job share, in a thread of its own.
//
//   TcpStoreServer server({.job = {.job_id = "job-7", .world_size = 8}, .token = token});
//   // tell the ranks server.port()
//
// Whoever connects must prove the job's token before anything else, on loopback too: there any user
// of the host may connect. Without a token it hears only ranks that say the same job id, which is
// no protection. docs/protocol.md has the bytes, the limits, and what is not protected.
// Lifetime: clients' calls fail with peer_lost when it goes.

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
  // A numeric address of this host. With "0.0.0.0" or "::" every network that reaches this host
  // reaches the store.
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any free one. A fixed one may be taken by somebody else.

  JobMember job;  // Whose ranks may connect; `rank` does not count.
  std::optional<JobToken> token = {};

  // Whether a rank that is connected already is refused. Off when a rank may hold several stores.
  bool refuse_duplicates = false;

  // From a connection to the end of its handshake. Too short refuses ranks of a host under load.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(5);
  // From the first to the last byte of a request, and without a client reading any byte of its
  // replies. Too short refuses large values on slow networks.
  std::chrono::milliseconds frame_timeout = std::chrono::seconds(30);
};

class LOCKSTEP_API TcpStoreServer {
 public:
  // Errors: misuse for an address that is not numeric, for one beyond loopback without a token
  // (LOCKSTEP_TRUST_NETWORK=1 in the environment allows it), and for a port in use, whose holder is
  // named; system when the operating system refuses.
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
