// Samples in tar files in WebDataset's layout, on a disk or fetched (docs/guide/shards.md).
//
//   lockstep::TarShards shards({"data/train-{000000..000146}.tar", "/more/shards"});
//   lockstep::DistributedSampler sampler(shards.size(), world, {.order = shards.order()});
//
// A sample is consecutive files KEY.SUFFIX of a shard with one key. KEY is the path up to the first
// dot of the base name; suffixes are converted to lower case.
//
// Shards may be compressed by gzip, zstd, bzip2, xz or lz4. Moving back in such a shard restarts at
// its beginning.
//
// Thread safety: all members may be called concurrently.
// Blocking: the constructor, while indexes are created or fetched; reading, while a shard is
// fetched.
// Errors: corrupt, naming the shard, if it is damaged (with the byte), has changed, or has a sample
// with two files of one suffix. System, with a failed command's output; timeout; misuse.
// Lifetime: a value type. Copies share indexes, open files and the prefetching thread.

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
#include "lockstep/toolkit/datasets/images/encoded_images.h"

namespace lockstep {

struct GroupedOrder;  // In distributed_sampler.h.

struct TarShardsOptions {
  // Accepts only plain, complete ustar, pax or GNU archives of files and folders. Errors: corrupt
  // for the format v7, data after the end, and a missing end. Unsupported for links, devices,
  // sparse files and compressed shards. Excludes `concatenated`.
  bool strict = false;

  // Reads all archives of a shard. Otherwise only the first, with a warning.
  bool concatenated = false;

  // Default: beside each shard, as SHARD.index. Indexes of fetched shards are in the cache.
  std::filesystem::path index_folder = {};

  // Command that copies the shard {url} to the file {path}. Spaces separate its words, unless
  // `fetch_by_shell` runs it in a shell. All ranks of a host use one fetched copy of a shard, until
  // the cache evicts it.
  std::string fetch = {};
  bool fetch_by_shell = false;

  // Folder of the cache, and limit for its shards. A limit above the disk's free space plus the
  // cached shards is an Error. Default: this sum, at most 64 GiB. order() needs a limit of two
  // blocks. Guide: docs/guide/shards.md.
  std::filesystem::path cache = {};
  std::optional<std::uint64_t> cache_bytes = {};

  // The constructor fetches SHARD.index from beside each shard, instead of the shard.
  bool fetch_indexes = false;

  // Attempts per shard. `fetch_pause` follows the first failure and doubles each time, up to a
  // minute. `fetch_timeout` limits each attempt.
  int fetch_attempts = 4;  // At most 1000.
  std::chrono::milliseconds fetch_pause = std::chrono::seconds(1);
  std::chrono::milliseconds fetch_timeout = std::chrono::minutes(30);

  // Called as indexes become available, with their number and that of all shards.
  std::function<void(std::size_t done, std::size_t shards)> at_index = {};
};

struct ShardSample {
  std::string key;
  std::map<std::string, std::string, std::less<>> parts;  // By suffix.
};

class LOCKSTEP_API TarShards {
 public:
  // Sources are files, folders (their shards sorted by name) and patterns with {000..146} or {a,b};
  // with `fetch`, URLs or patterns of URLs.
  explicit TarShards(const std::vector<std::string>& sources, const TarShardsOptions& options = {});

  std::size_t size() const;
  std::size_t shards() const;

  // Entries that are neither files nor folders.
  std::uint64_t skipped() const;

  // A shuffle that reads a few shards at a time. More shards mix better. Keep the result's at_pass,
  // by which will_read() also prefetches the next block. With several such samplers, the pass that
  // began last applies.
  // Errors: misuse for a cache of fewer than two blocks; unsupported for compressed shards.
  GroupedOrder order(std::size_t shards_per_block = 8) const;

  ShardSample sample(std::size_t index) const;

  std::string key(std::size_t index) const;
  std::vector<std::string> suffixes(std::size_t index) const;  // In file order.

  // Size of a part; nothing if the sample has none of this suffix. A sparse part may claim any
  // size: check stored_bytes() before you allocate.
  std::optional<std::uint64_t> part_bytes(std::size_t index, std::string_view suffix) const;

  // Without the holes of a sparse part, which read as zeros.
  std::optional<std::uint64_t> stored_bytes(std::size_t index, std::string_view suffix) const;

  // `out` has part_bytes() bytes. Errors: misuse for another size or a missing part.
  void read_part(std::size_t index, std::string_view suffix, std::span<std::uint8_t> out) const;

  // Prefetches the shards of samples to read soon; no effect on local shards. Returns at once.
  void will_read(std::span<const std::size_t> indices) const;

  // For messages: "train-000003.tar: cat/7".
  std::string sample_name(std::size_t index) const;

  // Depends on names, sizes and positions of samples.
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
// Errors: also corrupt. The constructor throws it for a sample without an image or a label, label()
// if that is no number. read() throws it for a sparse image of more than 1032 bytes per stored
// byte.
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
