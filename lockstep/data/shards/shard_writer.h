// Writes samples into numbered tar files in WebDataset's layout.
//
//   lockstep::ShardWriter writer("data/train", {.shard_bytes = 256 << 20});
//   for (std::size_t i = 0; i < images.size(); ++i)
//     writer.write(std::to_string(i), {{"jpg", images[i]}, {"cls", std::to_string(labels[i])}});
//   writer.finish();  // data/train-000000.tar, data/train-000001.tar, ...
//
// The same samples give the same bytes: the archives contain no times and no owners. A shard and
// its index get their final names when the shard is complete and synced. A killed writer leaves
// complete shards and one file *.tar.tmp-HOST-PID-N. The next `lockstep shard` into the folder
// removes it.
//
// Thread safety: none. Blocking: while a complete shard is synced to the disk.
// Errors: misuse for a sample that could not be read back unchanged; the sample is omitted. Misuse
// for a shard that exists, and system, with the file's name: complete shards stay, and all further
// calls throw misuse.

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
  // A shard ends before the sample that would exceed this size, or after `samples` samples. Shards
  // of some 100 MB are large enough for long sequential reads, and numerous enough for a shuffle.
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  std::size_t samples = 0;  // 0: no limit.

  bool replace = false;  // Replaces existing shards; otherwise they are an Error.
};

class LOCKSTEP_API ShardWriter {
 public:
  // Suffix and contents of each part.
  using Parts = std::vector<std::pair<std::string, std::string_view>>;

  // The shards are PREFIX-000000.tar, PREFIX-000001.tar and so on, beginning with number `first`.
  // The folder of `prefix` must exist.
  explicit ShardWriter(std::filesystem::path prefix, ShardWriterOptions options = {},
                       std::size_t first = 0);
  ~ShardWriter();  // Removes an incomplete shard.
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Writes the files KEY.SUFFIX. `key` may contain folders, but no dot in its last component, and
  // no component "." or "..": programs that unpack shards would write elsewhere.
  // Errors: misuse, also for a sample without parts, and for the same key as the previous sample:
  // readers would merge the two.
  void write(std::string_view key, const Parts& parts);

  // Completes the last shard. No other call may follow.
  void finish();

  std::size_t shards() const;  // Number of complete shards.

  // The name of shard `number`.
  static std::filesystem::path shard_path(const std::filesystem::path& prefix, std::size_t number);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
