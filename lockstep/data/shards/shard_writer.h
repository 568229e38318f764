// Writes samples into numbered tar files, in WebDataset's layout.
//
//   lockstep::ShardWriter writer("data/train", {.shard_bytes = 256 << 20});
//   for (std::size_t i = 0; i < images.size(); ++i)
//     writer.write(std::to_string(i), {{"jpg", images[i]}, {"cls", std::to_string(labels[i])}});
//   writer.finish();  // data/train-000000.tar, data/train-000001.tar, ...
//
// The same samples give the same bytes: the archives have no times and no owners. A shard gets its
// name when it is complete and on the disk, and its index with it, so that TarShards need not make
// one. A killed writer leaves complete shards and one file *.tar.tmp-HOST-PID-N, which the
// next `lockstep shard` into the folder removes.
//
// Thread safety: none.
// Blocking: while a complete shard is forced to the disk.
// Errors: misuse for a sample that could not be read back as it is; it is left out. Misuse for a
// shard that exists, and system, naming the file: complete shards stay, and all further calls are
// misuse.

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
  // A shard ends before the sample that would make it larger than this, and with the sample that
  // fills `samples`. Shards of some 100 MB are read in long streams, and there are enough of them
  // to shuffle.
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;
  std::size_t samples = 0;  // 0: no limit.

  bool replace = false;  // Existing shards are replaced; otherwise they are an Error.
};

class LOCKSTEP_API ShardWriter {
 public:
  // A part's suffix and its bytes.
  using Parts = std::vector<std::pair<std::string, std::string_view>>;

  // The shards are PREFIX-000000.tar, PREFIX-000001.tar and so on; `first` is the first one's
  // number. The folder of `prefix` must exist.
  explicit ShardWriter(std::filesystem::path prefix, ShardWriterOptions options = {},
                       std::size_t first = 0);
  ~ShardWriter();  // Leaves out a shard that is not complete.
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Writes the files KEY.SUFFIX. `key` may have folders, but no dot in its last part, and none of
  // them is "." or "..": programs that unpack shards would write elsewhere. Errors: misuse, also
  // for a sample without parts, and for the key of the sample before: readers would take both for
  // one.
  void write(std::string_view key, const Parts& parts);

  // Completes the last shard. No other call may follow.
  void finish();

  std::size_t shards() const;  // Complete ones.

  // The name of shard `number`.
  static std::filesystem::path shard_path(const std::filesystem::path& prefix, std::size_t number);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
