// A folder on this host's disk with the most recently used shards, for all jobs of this user.
//
//   FOLDER/NAME.tar         a complete shard; its modification time is the time of its last use
//   FOLDER/NAME.tar.index   its index, which is kept when the shard is evicted
//   FOLDER/locks/NAME.tar   locked by the process that fetches the shard
//   FOLDER/parts/NAME.tar/  files being fetched; later processes remove those of killed ones
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
  // `bytes` limits the complete shards: by default 64 GiB, or the disk's free space if that is
  // less. Indexes, and one fetched shard per process, need additional space.
  // Errors: system, naming the option, if `bytes` do not fit on the disk.
  ShardCache(std::string folder, std::optional<std::uint64_t> bytes);

  std::uint64_t bytes() const { return bytes_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Updates the time of use. Returns nothing if the shard is absent. An open shard is not evicted.
  std::optional<FileDescriptor> find(const std::string& name) const;

  struct Wanted {
    std::string name;                // Shard, which one process of a host at a time fetches.
    std::string target;              // Final path.
    std::uint64_t expected = 0;      // Size, or 0 if unknown.
    std::function<bool()> is_there;  // Whether the file exists.
    std::function<void(const std::string& path)> fetch;  // Creates the file at `path`.
  };

  // Fetches a missing file. Returns false if another process still fetches it at `deadline`.
  // Errors: those of `fetch`; misuse if the file is larger than the cache.
  bool provide(const Wanted& wanted, Deadline deadline) const;

 private:
  void remove_unfinished() const;
  void require_fits(std::uint64_t shard_bytes) const;

  // No process adds or evicts a shard while the result exists. Errors: timeout.
  FileLock lock_room(Deadline deadline) const;

  // Evicts shards until `bytes` fit. No process adds a shard while the result exists.
  FileLock make_room(std::uint64_t bytes) const;

  const std::string folder_;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::data
