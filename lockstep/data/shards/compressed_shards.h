// Reads samples of compressed shards, which can only be decompressed from their beginning. Some
// streams stay open at their last position, so that threads that read nearby samples can continue.
//
// Thread safety: several threads may call all members at once.
// Errors: corrupt, naming the shard, for damaged data.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "lockstep/data/shards/archive_input.h"
#include "lockstep/data/shards/shard_source.h"

namespace lockstep::data {

class CompressedShards {
 public:
  // Fills `out` with the decompressed bytes from `offset` on. `open` is the shard with this number.
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
  std::list<StreamPtr> idle_;      // Most recently used first.
  std::set<std::size_t> started_;  // Numbers of shards.
  std::size_t restarts_ = 0;
};

}  // namespace lockstep::data
