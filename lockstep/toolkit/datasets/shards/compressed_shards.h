// Reads samples of compressed shards. Some streams stay open at their last position, for reads of
// nearby samples.
//
// Thread safety: all members may be called concurrently. Errors: corrupt for damaged data.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "lockstep/toolkit/datasets/shards/archive_input.h"
#include "lockstep/toolkit/datasets/shards/shard_source.h"

namespace lockstep::datasets {

class CompressedShards {
 public:
  // Fills `out` with decompressed bytes from `offset` on. `open` is shard number `shard`.
  void read(std::size_t shard, const std::shared_ptr<const OpenShard>& open, std::uint64_t offset,
            std::span<std::byte> out);

 private:
  struct Stream {
    Stream(std::size_t number, std::shared_ptr<const OpenShard> opened);

    std::size_t shard;
    std::shared_ptr<const OpenShard> open;
    DecompressedInput input;
  };
  using StreamPtr = std::unique_ptr<Stream>;

  StreamPtr take(std::size_t shard, std::uint64_t offset);
  void keep(StreamPtr stream);
  void count_start(const Stream& stream);

  std::mutex mutex_;
  std::list<StreamPtr> idle_;  // Most recently used first.
  std::set<std::size_t> started_;
  std::size_t restarts_ = 0;
};

}  // namespace lockstep::datasets
