// A folder on this host's disk with the shards that were used last. All ranks of the host, and
// other jobs of this user, share it.
//
//   FOLDER/NAME.tar         a complete shard; its time of last change is that of its last use
//   FOLDER/NAME.tar.index   its index, which stays when the shard goes
//   FOLDER/locks/NAME.tar   locked by the process that fetches the shard
//   FOLDER/parts/NAME.tar/  files that are being fetched; nothing is left there by a fetch that
//                           failed, and leavings of killed processes are removed by the next ones
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
  // indexes, and a shard that each process is fetching, come on top.
  ShardCache(std::string folder, std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Opens the shard, and counts this as a use; nothing if it is not there. While it is open, it
  // stays readable, and is not evicted.
  std::optional<FileDescriptor> find(const std::string& name) const;

  // Calls fetch(path) unless `target`, a path in the folder, exists, and gives the file that it
  // makes that name. One process of the host does so for `name`, the others wait. `expected` is the
  // size if it is known, else 0. Returns false if another process was still at it at `deadline`.
  // Errors: those of `fetch`; misuse if the file is larger than the cache.
  bool provide(const std::string& name, const std::string& target, std::uint64_t expected,
               const std::function<void(const std::string& path)>& fetch, Deadline deadline) const;

 private:
  void remove_leavings() const;
  void require_fits(std::uint64_t shard_bytes) const;

  // Evicts shards until `bytes` more fit. Nobody else adds a shard while the result exists.
  FileLock make_room(std::uint64_t bytes) const;

  const std::string folder_;
  const std::uint64_t bytes_;
};

}  // namespace lockstep::data
