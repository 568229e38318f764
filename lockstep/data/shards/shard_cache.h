// A folder on this host's disk with the shards that were used last. All ranks of the host, and
// other jobs of this user, share it.
//
//   FOLDER/NAME.tar         a complete shard; its time of last change is that of its last use
//   FOLDER/NAME.tar.index   its index, which stays when the shard goes
//   FOLDER/locks/NAME.tar   locked by the process that fetches the shard
//   FOLDER/parts/NAME.tar/  files that are being fetched; nothing is left there by a fetch that
//                           failed; the next processes remove files of killed ones
//
// Thread safety: all members may be called from several threads at once.
// Errors: system, naming the file.

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
  // Creates the folder if necessary. `bytes` is the limit of the complete shards in it. Their
  // indexes, and a shard that each process is fetching, come on top. Without `bytes`, the limit is
  // 64 GiB, or as much as the disk has room for. Errors: system, naming the option, if the disk has
  // no room for `bytes`.
  ShardCache(std::string folder, std::optional<std::uint64_t> bytes);

  std::uint64_t bytes() const { return bytes_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Opens the shard, and counts this as a use; nothing if it is not there. While it is open, it
  // stays readable, and is not evicted.
  std::optional<FileDescriptor> find(const std::string& name) const;

  // A file in the folder, and how to get it.
  struct Wanted {
    std::string name;            // Of the shard; one process of the host fetches for it at a time.
    std::string target;          // Path that the file gets.
    std::uint64_t expected = 0;  // Its size, if it is known.
    std::function<bool()> is_there;                      // Whether the file is there already.
    std::function<void(const std::string& path)> fetch;  // Makes the file at `path`.
  };

  // Fetches the file unless it is there. Returns false if another process was still at it at
  // `deadline`. Errors: those of `fetch`; misuse if the file is larger than the cache.
  bool provide(const Wanted& wanted, Deadline deadline) const;

 private:
  void remove_unfinished() const;
  void require_fits(std::uint64_t shard_bytes) const;

  // Nobody adds or evicts a shard while the result exists. Errors: timeout.
  FileLock lock_room(Deadline deadline) const;

  // Evicts shards until `bytes` more fit. Nobody else adds a shard while the result exists.
  FileLock make_room(std::uint64_t bytes) const;

  const std::string folder_;
  std::uint64_t bytes_ = 0;  // Not changed after construction.
};

}  // namespace lockstep::data
