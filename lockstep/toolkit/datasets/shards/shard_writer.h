// Writes samples into numbered tar files in WebDataset's layout.
//
//   lockstep::ShardWriter writer("data/train", {.shard_bytes = 256 << 20});
//   writer.write("7", {{"jpg", image}, {"cls", "3"}});
//   writer.finish();  // data/train-000000.tar, data/train-000001.tar, ...
//
// The same samples give the same bytes. Shards get their final names when complete and synced,
// indexes when complete. A killed writer may leave one file *.tmp-HOST-PID-N, which the next
// `lockstep shard` on this host with the same prefix removes.
//
// Thread safety: none. Blocking: while a complete shard is synced.
// Errors: misuse for a sample that could not be read back unchanged; the sample is omitted. Misuse
// for an existing shard, and system, are final: complete shards stay; further calls throw misuse.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct ShardWriterOptions {
  // A shard ends before the sample that would exceed this size, or after `samples` samples. A few
  // hundred MB allow long sequential reads, and enough shards for a shuffle.
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  std::size_t samples = 0;  // 0: no limit.

  bool replace = false;  // Otherwise existing shards are an Error.
};

class LOCKSTEP_API ShardWriter {
 public:
  // Suffix and contents of each part.
  using Parts = std::vector<std::pair<std::string, std::string_view>>;

  // Writes PREFIX-000000.tar and so on, from number `first`. The folder of `prefix` must exist.
  explicit ShardWriter(std::filesystem::path prefix, ShardWriterOptions options = {},
                       std::size_t first = 0);
  ~ShardWriter();  // Removes an incomplete shard.
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Writes the files KEY.SUFFIX. `key` may contain folders, but no dot in its last component, and
  // no "." or "..". Errors: misuse, also without parts, and for the previous sample's key: readers
  // would merge the two.
  void write(std::string_view key, const Parts& parts);

  // Completes the last shard. Call it last.
  void finish();

  std::size_t shards() const;  // Complete ones.

  static std::filesystem::path shard_path(const std::filesystem::path& prefix, std::size_t number);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
