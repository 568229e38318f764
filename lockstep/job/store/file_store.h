// A store in one file, for ranks that share a file system and no network.
//
// The file is a log of changes. Every operation holds the kernel's lock on it, so nobody reads half
// a change. A killed writer may leave half a change at the end; the next writer cuts it off. The
// file is compacted when most of it is out of date. wait() polls, at most 50 ms apart.
//
// Opening a path joins the map in that file: give every attempt of a job a new path. The store
// never removes the file. The map survives the death of processes, but not of hosts.
//
// Errors: as in store.h; timeout when another process holds the lock for `timeout`; system when the
// file system has no locks (NFS needs version 4, Lustre the mount option flock).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "lockstep/job/store/store.h"

namespace lockstep {

struct FileStoreOptions {
  std::filesystem::path path;  // Created with mode 0600 when absent.

  // Time limit for the lock, in every call except wait(). A short limit fails calls when the holder
  // is stopped for a moment.
  std::chrono::milliseconds timeout = default_timeout;
};

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
