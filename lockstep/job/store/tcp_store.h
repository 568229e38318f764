// A store over TCP for ranks on several hosts: client, server, and the job's identity and secret.
//
// Thread safety: as in store.h; a JobToken is a value. Call read_job_token() and
// secret_of_environment(), which change the environment, before starting threads.
// Blocking: TcpStore's constructor at most `connect_timeout`, or as long as the resolver; other
// calls, except wait(), at most `timeout`.
// Errors: as in store.h. When the server has ended, every current and later call throws peer_lost
// at once, with its address. There is no reconnection: a new server lacks the old keys.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

// A process in a job's network. Both ends of a connection must agree on all but `rank`.
struct JobMember {
  std::string job_id;  // 1 to 123 bytes, unique among jobs.
  int rank = 0;
  int world_size = 1;
  int attempt = 0;  // Restarts; ranks of other attempts are refused.
};

// Text that core dumps exclude, and that is not swapped out if this user may lock memory. Copies
// share the pages, which the last destructor overwrites.
class LOCKSTEP_API Secret {
 public:
  // Errors: system when memory cannot be excluded from dumps.
  explicit Secret(std::string_view text);
  Secret(const Secret&) = default;  // A move would leave a Secret without text.
  Secret& operator=(const Secret&) = default;

  std::string_view text() const;

 private:
  class Pages;

  std::shared_ptr<const Pages> pages_;
};

// 64 characters that distinguish secrets and do not reveal a secret of 128 random bits.
LOCKSTEP_API std::string fingerprint(const Secret& secret);

// The secret that only the processes of one job share.
class LOCKSTEP_API JobToken {
 public:
  // `text` is Base64, either alphabet, of 22 (128 bits) to 1024 characters. Errors: misuse, without
  // the text, if not.
  explicit JobToken(std::string_view text);

  // Core dumps may contain copies.
  std::string_view text() const { return secret_.text(); }

 private:
  Secret secret_;
};

// 256 random bits.
LOCKSTEP_API JobToken make_job_token();

// Reads the file in LOCKSTEP_JOB_TOKEN_FILE, else LOCKSTEP_JOB_TOKEN; empty when neither is set.
// Wipes and unsets the latter: children, /proc and a second call do not find it. Errors: misuse if
// both are set, and as JobToken's. Misuse for a file that is not a regular one of this user, or is
// accessible to others.
LOCKSTEP_API std::optional<JobToken> read_job_token();

// The text of LOCKSTEP_JOB_TOKEN, of any form, for all groups of this process; empty if unset. The
// first call wipes and unsets the variable.
LOCKSTEP_API const std::optional<Secret>& secret_of_environment();

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // Numeric, or a name for the resolver.
  int port = 0;
  JobMember member;  // This process.
  std::optional<JobToken> token = {};

  // Time to wait for the server to start. If short, jobs fail whose hosts start one by one.
  std::chrono::milliseconds connect_timeout = default_timeout;
  // Time limit of each request except wait(). If short, calls fail on a busy host.
  std::chrono::milliseconds timeout = default_timeout;
  std::function<void()> look = [] {};  // Called while the server is unreachable.
};

// A client of a TcpStoreServer, with one connection that all threads share.
class LOCKSTEP_API TcpStore final : public Store {
 public:
  // Errors: timeout when no server was reachable. Misuse for an unknown host, and when the server
  // refused, with both ends' values if both proved the token. Corrupt if it is no Lockstep store or
  // did not prove the token.
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

struct TcpStoreServerOptions {
  // A numeric address of this host. "0.0.0.0" and "::" expose the store to all networks.
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any free port. A fixed port may be in use.

  JobMember job;  // `rank` is ignored.
  std::optional<JobToken> token = {};

  // Refuses a rank that is already connected. False: a rank may have several stores.
  bool refuse_duplicates = false;

  // Time from a connection to the end of its handshake. If short, ranks of a busy host are dropped
  // and retry.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(5);
  // Time from the first to the last byte of a request, and for a client to read some byte of its
  // replies. If short, large values fail on slow networks.
  std::chrono::milliseconds frame_timeout = std::chrono::seconds(30);
};

// Serves the map that TcpStores of one job share, in its own thread.
//
//   TcpStoreServer server({.job = {.job_id = "job-7", .world_size = 8}, .token = token});
//
// Pass server.port() to the ranks. A client must first prove the job's token, also on loopback.
// Without a token the server checks only its JobMember, which is no protection: docs/protocol.md.
class LOCKSTEP_API TcpStoreServer {
 public:
  // Errors: misuse for an invalid `job` or address, for a port in use, with its holder, and as
  // require_protection() (tcp_socket.h). System when a system call fails.
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
