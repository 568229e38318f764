// Where the shards of a dataset lie: on a disk of this host, or elsewhere, from where they are
// fetched into a cache.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/data/shards/shard_index.h"

namespace lockstep::data {

// A shard that is open. The file stays readable while this exists.
struct OpenShard {
  std::string name;  // For messages.
  FileDescriptor fd;
};

// Thread safety: all members may be called from several threads at once.
class ShardSource {
 public:
  virtual ~ShardSource() = default;

  virtual std::size_t shards() const = 0;
  virtual const std::string& name(std::size_t shard) const = 0;

  // Path of the shard's index, whether it exists or not.
  virtual std::string index_path(std::size_t shard) const = 0;

  // Makes the index if it does not exist, or is not the shard's. If another process is making it,
  // either waits for it or, with `wait` = false, returns false.
  virtual bool provide_index(std::size_t shard, bool wait) = 0;

  // Blocking: until the shard is on this host. `index` is the shard's own.
  // Errors: corrupt if the shard was changed since the index was made; system.
  virtual std::shared_ptr<const OpenShard> open(std::size_t shard, const ShardIndexView& index) = 0;

  // Bytes that the source may keep on this host; nothing if they are there anyway.
  virtual std::optional<std::uint64_t> room() const = 0;

  // Shards that will be opened soon, in this order. Returns at once.
  virtual void will_open(std::span<const std::size_t> shards) = 0;
};

}  // namespace lockstep::data
