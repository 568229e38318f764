// A store over TCP for ranks on several hosts: client, server, and the identity and secret by which
// a process proves that it belongs to the job.
//
// Thread safety: as in store.h; a JobToken is a value. read_job_token() and secret_of_environment()
// change the environment: call them before starting threads.
// Blocking: TcpStore's constructor until the server has accepted this rank, at most
// `connect_timeout`; other calls, except wait(), at most `timeout`.
// Errors: as in store.h. When the server has ended, every current and later call throws peer_lost
// at once, with the server's address. There is no reconnection, because a new server has another
// map.
// Lifetime: clients' calls fail with peer_lost when the server is destroyed.

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

// The identity of a process in a job's network. Both ends of a connection must agree on it.
struct JobMember {
  std::string job_id;  // 1 to 123 bytes, unique among jobs.
  int rank = 0;
  int world_size = 1;
  int attempt = 0;  // Number of restarts; ranks of an earlier attempt are refused.
};

// Text that core dumps of this process do not contain: it has its own pages, which the kernel
// excludes from dumps. It is not swapped out if this user may lock memory. Copies share the pages;
// the last copy's destructor overwrites them.
class LOCKSTEP_API Secret {
 public:
  // Errors: system when memory cannot be excluded from dumps.
  explicit Secret(std::string_view text);
  Secret(const Secret&) = default;  // No move: it would leave a Secret without text.
  Secret& operator=(const Secret&) = default;

  std::string_view text() const;

 private:
  class Pages;

  std::shared_ptr<const Pages> pages_;
};

// Returns 64 characters that distinguish secrets. They do not reveal a secret of 128 random bits.
LOCKSTEP_API std::string fingerprint(const Secret& secret);

// The secret that only the processes of one job share.
class LOCKSTEP_API JobToken {
 public:
  // `text` is Base64, either alphabet, of at least 128 bits: 22 characters. Errors: misuse if it is
  // shorter; the message does not contain the text.
  explicit JobToken(std::string_view text);

  // Core dumps exclude this memory, but not copies of it.
  std::string_view text() const { return secret_.text(); }

 private:
  Secret secret_;
};

// Returns 256 random bits.
LOCKSTEP_API JobToken make_job_token();

// Reads the file in LOCKSTEP_JOB_TOKEN_FILE, else LOCKSTEP_JOB_TOKEN; empty when neither is set.
// Wipes and unsets LOCKSTEP_JOB_TOKEN, so that children and /proc do not show it; a second call
// returns nothing. Errors: misuse if both are set, and for a token that is too short. Also for a
// file that is a symbolic link, belongs to another user, or is readable by others.
LOCKSTEP_API std::optional<JobToken> read_job_token();

// Returns the text of LOCKSTEP_JOB_TOKEN for all groups of this process; empty if it was not set.
// Any text is allowed. The first call reads, wipes and unsets the variable.
LOCKSTEP_API const std::optional<Secret>& secret_of_environment();

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // Numeric address, or a name for the resolver.
  int port = 0;
  JobMember member;  // This process; the server refuses unexpected values.
  std::optional<JobToken> token = {};

  // Time to wait for the server to start. If it is short, jobs fail whose hosts start one by one.
  std::chrono::milliseconds connect_timeout = default_timeout;
  // Timeout of each request except wait(). If it is short, calls fail on a busy host.
  std::chrono::milliseconds timeout = default_timeout;
  std::function<void()> look = [] {};  // Called while the server is not reachable.
};

// A client of a TcpStoreServer, with one connection that all threads share.
class LOCKSTEP_API TcpStore final : public Store {
 public:
  // Errors: timeout when no server was reachable. Misuse when the server refused, with both ends'
  // values after both have proved the token. Corrupt when the listener is not a store of this job.
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
  // A numeric address of this host. "0.0.0.0" and "::" expose the store to all networks of this
  // host.
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any free port. A fixed port may be in use.

  JobMember job;  // The job whose ranks may connect; `rank` is ignored.
  std::optional<JobToken> token = {};

  // Whether to refuse a rank that is already connected. Set false if a rank may have several
  // stores.
  bool refuse_duplicates = false;

  // Time from a connection to the end of its handshake. If it is short, ranks of a busy host are
  // refused.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(5);
  // Time from the first to the last byte of a request, and time in which a client must read some
  // byte of its replies. If it is short, large values fail on slow networks.
  std::chrono::milliseconds frame_timeout = std::chrono::seconds(30);
};

// Serves the map that TcpStores of one job share, in its own thread.
//
//   TcpStoreServer server({.job = {.job_id = "job-7", .world_size = 8}, .token = token});
//   // Pass server.port() to the ranks.
//
// A client must prove the job's token first, also on loopback, to which any user of the host may
// connect. Without a token the server checks only the job id, which is no protection.
// docs/protocol.md has the bytes, the limits, and what is not protected.
class LOCKSTEP_API TcpStoreServer {
 public:
  // Errors: misuse for an address that is not numeric, and for a port in use, with its holder.
  // Misuse for an address beyond loopback without a token, unless the environment has
  // LOCKSTEP_TRUST_NETWORK=1. System when a system call fails.
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
