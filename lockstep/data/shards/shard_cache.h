// A folder on this host's disk with the most recently used shards. All ranks of the host, and other
// jobs of this user, share it.
//
//   FOLDER/NAME.tar         a complete shard; its modification time is the time of its last use
//   FOLDER/NAME.tar.index   its index, which is kept when the shard is evicted
//   FOLDER/locks/NAME.tar   locked by the process that fetches the shard
//   FOLDER/parts/NAME.tar/  files that are being fetched; a failed fetch removes its files, and
//                           later processes remove those of killed processes
//
// Thread safety: several threads may call all members at once.
// Errors: system, with the file's name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/data/shards/file_lock.h"

namespace lockstep::data {

class ShardCache {
 public:
  // Creates the folder if necessary. `bytes` limits the complete shards in it. Their indexes, and
  // one shard per process that is being fetched, need additional space. The default limit is 64
  // GiB, or the free space of the disk if that is less.
  // Errors: system, naming the option, if `bytes` do not fit on the disk.
  ShardCache(std::string folder, std::optional<std::uint64_t> bytes);

  std::uint64_t bytes() const { return bytes_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Opens the shard and updates its time of use. Returns nothing if it is not in the cache. An open
  // shard stays readable and is not evicted.
  std::optional<FileDescriptor> find(const std::string& name) const;

  // A file in the folder, and how to fetch it.
  struct Wanted {
    std::string name;            // Name of the shard. On a host, one process at a time fetches it.
    std::string target;          // Final path of the file.
    std::uint64_t expected = 0;  // Size of the file, or 0 if unknown.
    std::function<bool()> is_there;                      // Whether the file exists.
    std::function<void(const std::string& path)> fetch;  // Creates the file at `path`.
  };

  // Fetches the file unless it exists. Returns false if another process is still fetching it at
  // `deadline`.
  // Errors: those of `fetch`; misuse if the file is larger than the cache.
  bool provide(const Wanted& wanted, Deadline deadline) const;

 private:
  void remove_unfinished() const;
  void require_fits(std::uint64_t shard_bytes) const;

  // No process adds or evicts a shard while the result exists. Errors: timeout.
  FileLock lock_room(Deadline deadline) const;

  // Evicts shards until `bytes` fit. No other process adds a shard while the result exists.
  FileLock make_room(std::uint64_t bytes) const;

  const std::string folder_;
  std::uint64_t bytes_ = 0;  // Not changed after construction.
};

}  // namespace lockstep::data
