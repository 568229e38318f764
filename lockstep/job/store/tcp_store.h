// The store that a TcpStoreServer keeps, through one connection that all threads share.
//
// Blocking: the constructor until the server has taken this rank, at most `connect_timeout`; other
// calls but wait() at most `timeout`.
// Errors: as in store.h. When the server goes, every call that is under way and every later one
// throws peer_lost at once, with the server's address; there is no silent reconnection, because the
// map may be another one then.

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
  std::string host = "127.0.0.1";  // A numeric address, or a name for the resolver.
  int port = 0;
  JobMember member;  // Who we are; the server refuses what it does not expect.
  std::optional<JobToken> token = {};

  // The server may start later than we do. Too short fails jobs whose hosts start one by one.
  std::chrono::milliseconds connect_timeout = default_timeout;
  // For each request but wait(). Too short fails calls on a host under load.
  std::chrono::milliseconds timeout = default_timeout;
};

class LOCKSTEP_API TcpStore final : public Store {
 public:
  // Errors: timeout when no server came; misuse when it refused us, with both ends' values once
  // both have proved the token; corrupt when what listens there is no store of this job.
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
