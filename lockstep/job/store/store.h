// A small shared key-value store for the rendezvous of ranks. tcp_store.h has the one for several
// hosts.
//
//   TcpStore store({.host = "node1", .port = 29400, .member = {"job-7", rank, world_size}});
//   store.set("address/0", "node1:4711");
//   std::string peer = store.wait("address/1", in(std::chrono::seconds(30)));
//
// Keys and values are arbitrary bytes. Operations are linearizable.
// Thread safety: full.
// Blocking: wait() until its deadline or about 1 s longer; others for a time that the
// implementation limits.
// Errors: misuse for a key or value that is too long; system when the store is full; timeout,
// naming the key. Peer_lost when the server has ended, in this and every later call. Corrupt for a
// damaged file or server.
// A call that ends with a timeout may have made its change.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"

namespace lockstep {

class LOCKSTEP_API Store {
 public:
  static constexpr std::size_t max_key_bytes = std::size_t{4} << 10;
  static constexpr std::size_t max_value_bytes = std::size_t{16} << 20;
  static constexpr std::size_t max_keys = 1'000'000;
  static constexpr std::size_t max_bytes = std::size_t{256} << 20;

  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;

  // Empty if there is no value.
  virtual std::optional<std::string> find(std::string_view key) = 0;

  // Returns as soon as the value exists; an existing value even after the deadline.
  virtual std::string wait(std::string_view key, Deadline deadline) = 0;

  // Adds to the number at `key`, 0 if absent. Returns the sum, stored as decimal text. Errors:
  // misuse when the value is not a number or the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;

  // Sets the value to `desired` if it equals `expected`; returns the value afterwards. As in
  // PyTorch, an absent key equals an empty `expected`. If `expected` is not empty, an absent key
  // stays absent, and the call returns `expected`.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;

  // Whether the key existed.
  virtual bool erase(std::string_view key) = 0;
};

// A store within one process, for jobs of one rank and ranks that are threads.
class LOCKSTEP_API InProcessStore final : public Store {
 public:
  InProcessStore();
  ~InProcessStore() override;
  InProcessStore(const InProcessStore&) = delete;
  InProcessStore& operator=(const InProcessStore&) = delete;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;

 private:
  struct State;

  const std::unique_ptr<State> state_;
};

// The keys of `store` that begin with `prefix`. `store` must outlive it. The prefix counts towards
// a key's length.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override { store_.set(full(key), value); }
  std::optional<std::string> find(std::string_view key) override { return store_.find(full(key)); }
  std::string wait(std::string_view key, Deadline deadline) override {
    return store_.wait(full(key), deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return store_.add(full(key), amount);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return store_.compare_set(full(key), expected, desired);
  }
  bool erase(std::string_view key) override { return store_.erase(full(key)); }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  Store& store_;
  const std::string prefix_;
};

struct FileStoreOptions {
  std::filesystem::path path;  // If absent, created with mode 0600.

  // Time limit for the lock, except in wait(). If short, calls fail when the holder is briefly
  // stopped.
  std::chrono::milliseconds timeout = default_timeout;
};

// A store in one file, for ranks that share a file system and no network.
//
// The file is a log of changes (docs/protocol.md), locked during every operation. wait() locks it
// only to poll, at least every 50 ms.
//
// Opening a path joins its store: use a new path for every attempt of a job. The file is never
// removed. The store survives the death of processes, but not of hosts.
//
// Errors: also timeout for the lock. System when the file system has no locks (NFS needs version 4,
// Lustre the mount option flock).
class LOCKSTEP_API FileStore final : public Store {
 public:
  // Errors: misuse for a symbolic link, a file of another user, or a file that others can access.
  explicit FileStore(const FileStoreOptions& options);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;

 private:
  class Log;

  const std::unique_ptr<Log> log_;
};

}  // namespace lockstep
