// A client of a TcpStoreServer, with one connection that all threads share.
//
// Blocking: the constructor until the server has accepted this rank, at most `connect_timeout`.
// Other calls, except wait(), at most `timeout`.
// Errors: as in store.h. When the server is gone, every current and later call throws peer_lost at
// once, with the server's address. There is no silent reconnection, because the map may be another
// one then.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/job/store/job_member.h"
#include "lockstep/job/store/job_token.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // Numeric address, or a name for the resolver.
  int port = 0;
  JobMember member;  // This process; the server refuses values it does not expect.
  std::optional<JobToken> token = {};

  // Time to wait for a server that starts later. A short timeout fails jobs whose hosts start one
  // by one.
  std::chrono::milliseconds connect_timeout = default_timeout;
  // Timeout of each request except wait(). A short timeout fails calls on a host under load.
  std::chrono::milliseconds timeout = default_timeout;
};

class LOCKSTEP_API TcpStore final : public Store {
 public:
  // Errors: timeout when no server came. Misuse when the server refused, with both ends' values
  // once both have proved the token. Corrupt when the listener is not a store of this job.
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;

 private:
  class Connection;

  const std::unique_ptr<Connection> connection_;
};

}  // namespace lockstep
