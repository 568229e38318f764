// A folder on this host's disk with the most recently used shards, for all jobs of this user.
//
//   FOLDER/NAME.tar         a complete shard; its modification time is the time of its last use
//   FOLDER/NAME.tar.index   its index, which is kept when the shard is evicted
//   FOLDER/locks/NAME.tar   locked by the process that fetches the shard
//   FOLDER/parts/NAME.tar/  files being fetched; later processes remove those of killed ones
//
// Thread safety: full. Errors: system; timeout if another process evicts shards for 30 s.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/toolkit/datasets/shards/file_lock.h"

namespace lockstep::datasets {

class ShardCache {
 public:
  // `bytes`: TarShardsOptions::cache_bytes.
  ShardCache(std::string folder, std::optional<std::uint64_t> bytes);

  std::uint64_t bytes() const { return bytes_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Updates the time of use. Returns nothing for an absent shard. An open shard is not evicted.
  std::optional<FileDescriptor> find(const std::string& name) const;

  struct Wanted {
    std::string name;
    std::string target;
    std::uint64_t expected = 0;  // Size, or 0 if unknown.
    std::function<bool()> is_there;
    std::function<void(const std::string& path)> fetch;
  };

  // Fetches a missing file. Returns false if another process or thread still fetches it at
  // `deadline`. Errors: also those of `fetch`; misuse if the file exceeds the cache.
  bool provide(const Wanted& wanted, Deadline deadline) const;

 private:
  void remove_unfinished() const;
  void require_fits(std::uint64_t shard_bytes) const;

  // While the result exists, no process adds or evicts a shard. Errors: timeout.
  FileLock lock_room(Deadline deadline) const;

  // Evicts shards until `bytes` fit. Returns the lock of lock_room().
  FileLock make_room(std::uint64_t bytes) const;

  const std::string folder_;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::datasets
