// The shards of a dataset: local files, or remote ones that are fetched into a cache.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"

namespace lockstep::datasets {

// The file stays readable while this object exists.
struct OpenShard {
  std::string name;  // For messages.
  FileDescriptor fd;
};

// Thread safety: all members may be called concurrently.
class ShardSource {
 public:
  virtual ~ShardSource() = default;

  virtual std::size_t shards() const = 0;
  virtual const std::string& name(std::size_t shard) const = 0;

  // The file need not exist.
  virtual std::string index_path(std::size_t shard) const = 0;

  // Creates a missing or outdated index. If another process is creating it, waits or, with `wait` =
  // false, returns false.
  virtual bool provide_index(std::size_t shard, bool wait) = 0;

  // Blocking: until the shard is on this host.
  // Errors: corrupt if the shard changed after the index was created; system; timeout; aborted.
  virtual std::shared_ptr<const OpenShard> open(std::size_t shard, const ShardIndexView& index) = 0;

  // Limit of bytes on this host; nothing for local shards.
  virtual std::optional<std::uint64_t> capacity() const = 0;

  // Announces shards to open soon, in order, in place of earlier ones. Returns at once.
  virtual void will_open(std::span<const std::size_t> shards) = 0;
};

}  // namespace lockstep::datasets
