// A small shared map through which ranks find each other before they can talk to each other.
//
// This header has the interface, and the maps within one process, in one file, and in a part of
// another store. tcp_store.h has the map of ranks on several hosts.
//
//   TcpStore store({.host = "node1", .port = 29400, .member = {"job-7", rank, world_size}});
//   store.set("address/0", "node1:4711");
//   std::string peer = store.wait("address/1", in(std::chrono::seconds(30)));
//
// Keys and values are arbitrary bytes, at most max_key_bytes and max_value_bytes long. The map
// holds at most max_keys keys, and max_bytes of keys and values together. Each member takes effect
// at one instant, and all users of the map see these instants in one order.
// Thread safety: any thread may call any member at any time.
// Blocking: wait() until its deadline. Other members for the access to the map, which each
// implementation limits.
// Errors: misuse for a key or value that is too long; system when the map is full; timeout, whose
// message names the key; peer_lost when the server of the map is gone, for this and every later
// call; corrupt when the map's file or server is damaged. After a timeout of any member but wait(),
// the change may or may not have been made.

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

  // Returns the current value; empty when there is none.
  virtual std::optional<std::string> find(std::string_view key) = 0;

  // Returns the value as soon as there is one. Returns an existing value at once, even after the
  // deadline.
  virtual std::string wait(std::string_view key, Deadline deadline) = 0;

  // Adds to the number at `key`, an absent key being 0, and returns the sum, stored as decimal
  // text. Errors: misuse when the value is not a number or the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;

  // Replaces the value by `desired` if it equals `expected`, and returns the value afterwards. As
  // in PyTorch, an absent key equals an empty `expected`. With another `expected`, an absent key
  // stays absent and `expected` is returned.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;

  // Returns whether the key was there.
  virtual bool erase(std::string_view key) = 0;
};

// A store within one process, for jobs of one rank and for ranks that are threads.
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

// A part of another store's map: the keys that begin with a prefix. Two users of one store can then
// not collide. The prefix counts towards the length of a key. Lifetime: the other store must
// outlive this one.
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
  std::filesystem::path path;  // Created with mode 0600 when absent.

  // Time limit for the lock, in every call except wait(). A short limit fails calls when the holder
  // is stopped for a moment.
  std::chrono::milliseconds timeout = default_timeout;
};

// A store in one file, for ranks that share a file system and no network.
//
// The file is a log of changes. Every operation holds the kernel's lock on it, so nobody reads half
// a change. A killed writer may leave half a change at the end; the next writer cuts it off. The
// file is compacted when most of it is out of date. wait() polls, at most 50 ms apart.
//
// Opening a path joins the map in that file: give every attempt of a job a new path. The store
// never removes the file. The map survives the death of processes, but not of hosts.
//
// Errors: those of a Store; timeout when another process holds the lock for `timeout`; system when
// the file system has no locks (NFS needs version 4, Lustre the mount option flock).
class LOCKSTEP_API FileStore final : public Store {
 public:
  // Errors: misuse for a symbolic link, a file of another user, or one open to others.
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
