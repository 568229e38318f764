// Samples in tar files in WebDataset's layout, on a disk or fetched (docs/guide/shards.md).
//
//   lockstep::TarShards shards({"data/train-{000000..000146}.tar", "/more/shards"});
//   lockstep::DistributedSampler sampler(shards.size(), world, {.order = shards.order()});
//
// Consecutive files KEY.SUFFIX of a shard with one key are one sample. KEY is the path up to the
// first dot of the base name; suffixes are converted to lower case.
//
// Shards may be compressed by gzip, zstd, bzip2, xz or lz4. Moving back in such a shard restarts at
// its beginning.
//
// Thread safety: any thread may call any member at any time.
// Blocking: the constructor, while indexes are created; reading, while a shard is fetched.
// Errors: corrupt, with shard, byte, expected and found value, for a damaged or changed shard, and
// for a sample with two files of one suffix. System, with the output of a failed command; misuse.
// Lifetime: a value type. Copies share indexes, open files and the thread that prefetches.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/images/encoded_images.h"

namespace lockstep {

struct GroupedOrder;  // In distributed_sampler.h.

struct TarShardsOptions {
  // Accepts only plain, complete ustar, pax or GNU archives of files and folders. Errors: corrupt
  // for the format v7, data after the end, and a missing end. Unsupported for links, devices,
  // sparse files and compressed shards. Excludes `concatenated`.
  bool strict = false;

  // A shard may be several archives. Otherwise only the first one is read, with a warning.
  bool concatenated = false;

  // Folder of the indexes. Default: beside each shard, as SHARD.index. Fetched shards have their
  // indexes in the cache.
  std::filesystem::path index_folder = {};

  // Command that copies the shard {url} to the file {path}. It is split at spaces, or run by a
  // shell if `fetch_by_shell` is set. Each host fetches every shard once per epoch, or less often
  // if its cache holds all of them.
  std::string fetch = {};
  bool fetch_by_shell = false;

  // Folder of the cache, and limit for its shards: by default 64 GiB, or the disk's free space if
  // that is less. A limit beyond the free space is an Error. The least recently used shards are
  // removed. The cache must hold two blocks of order(). Indexes, and one shard per rank that is
  // being fetched, need additional space. If a shard changes at its source, remove the cache.
  std::filesystem::path cache = {};
  std::optional<std::uint64_t> cache_bytes = {};

  // Fetches SHARD.index from beside each shard. Otherwise every shard is fetched once before
  // training to create its index.
  bool fetch_indexes = false;

  // Attempts per shard; `fetch_pause` follows the first failure and doubles each time, up to a
  // minute. `fetch_timeout` limits each attempt.
  int fetch_attempts = 4;  // At most 1000.
  std::chrono::milliseconds fetch_pause = std::chrono::seconds(1);
  std::chrono::milliseconds fetch_timeout = std::chrono::minutes(30);

  // Called by the constructor for each shard whose index exists, with the numbers of such shards
  // and of all shards.
  std::function<void(std::size_t done, std::size_t shards)> at_index = {};
};

// Contents of all files of a sample.
struct ShardSample {
  std::string key;
  std::map<std::string, std::string, std::less<>> parts;  // By suffix.
};

class LOCKSTEP_API TarShards {
 public:
  // Each source is a file, a folder, which stands for its shards sorted by name, or a pattern with
  // {000..146} or {a,b}. With `fetch`, sources are URLs or patterns of URLs.
  explicit TarShards(const std::vector<std::string>& sources, const TarShardsOptions& options = {});

  std::size_t size() const;  // Number of samples.
  std::size_t shards() const;

  // Entries in all shards that are neither files nor folders.
  std::uint64_t skipped() const;

  // A shuffle that reads a few shards at a time. More shards mix better. The order's at_pass
  // prefetches the shards of the next block, so keep it. The order of the latest pass applies.
  // Errors: misuse if the cache cannot hold two blocks; unsupported for compressed shards.
  GroupedOrder order(std::size_t shards_per_block = 8) const;

  ShardSample sample(std::size_t index) const;

  std::string key(std::size_t index) const;
  std::vector<std::string> suffixes(std::size_t index) const;  // In file order.

  // Size of a part; nothing if the sample has no part with this suffix. A sparse part may claim any
  // size: check stored_bytes() before you allocate.
  std::optional<std::uint64_t> part_bytes(std::size_t index, std::string_view suffix) const;

  // As part_bytes(), without the holes of a sparse part, which read as zeros.
  std::optional<std::uint64_t> stored_bytes(std::size_t index, std::string_view suffix) const;

  // Fills `out`, which has part_bytes() bytes. Errors: misuse for a part that does not exist.
  void read_part(std::size_t index, std::string_view suffix, std::span<std::uint8_t> out) const;

  // Announces samples that are read soon. Returns at once.
  void will_read(std::span<const std::size_t> indices) const;

  // Name of a sample for messages: "train-000003.tar: cat/7".
  std::string sample_name(std::size_t index) const;

  // Equal for copies of the shards: depends on names, sizes and positions of the samples.
  std::uint64_t fingerprint() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// --- Images --------------------------------------------------------------------------------------

struct ShardImagesOptions {
  // The first suffix that a sample has is used.
  std::vector<std::string> image = {"jpg", "jpeg", "png", "webp"};

  // Suffix of the class, a number as text.
  std::string label = "cls";
};

// The source of a DecodedImages.
// Errors: in addition, corrupt, naming the sample. The constructor throws it without an image or a
// label, and label() without a number. read() throws it for a sparse image of more than 1032 bytes
// per stored byte.
class LOCKSTEP_API ShardImages : public EncodedImages {
 public:
  explicit ShardImages(TarShards shards, ShardImagesOptions options = {});

  std::size_t size() const override { return shards_.size(); }
  std::int64_t label(std::size_t index) const override;
  std::span<const std::uint8_t> read(std::size_t index, EncodedBuffer& buffer) const override;
  void will_read(std::span<const std::size_t> indices) const override;
  std::string name(std::size_t index) const override;
  std::uint64_t fingerprint() const override { return shards_.fingerprint(); }

 private:
  [[noreturn]] void refuse(std::size_t index, bool has_image) const;

  const TarShards shards_;
  const ShardImagesOptions options_;
};

}  // namespace lockstep
