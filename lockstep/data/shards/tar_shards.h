// Samples in tar files, in WebDataset's layout: datasets of millions of small files as some
// thousand large ones, on a disk or elsewhere.
//
//   lockstep::TarShards shards({"data/train-{000000..000146}.tar", "/more/shards"});
//   lockstep::DecodedImages train(std::make_shared<lockstep::ShardImages>(shards), {...});
//   lockstep::DistributedSampler sampler(shards.size(), world, {.order = shards.order()});
//
// The files KEY.SUFFIX of one key that follow each other in a shard are one sample: KEY is the path
// up to the first dot of its last part, and suffixes are in lower case. Files without a suffix, and
// those whose path begins with a name like __this__, belong to no sample. Archives are v7, ustar,
// pax or GNU tar. Keys and parts are WebDataset's, and a hard link to a file of the archive is that
// file, too. Entries that are neither files nor folders are skipped: skipped() counts them, and a
// warning names the first one.
//
// Shards compressed by gzip, zstd, bzip2, xz or lz4 are read from their beginning on. Reading their
// samples in order is fast. Going back restarts at the beginning, and order() refuses them.
//
// Unlike WebDataset, samples have numbers: each epoch has every sample exactly once, any number of
// ranks can go on in the middle of an epoch, and no rank ends before others. For this, each shard
// has an index, made from its headers the first time and kept as a file. Ranks of one host share
// the work.
//
// Shards elsewhere are fetched by a command, once for each host, into a cache on its disk:
//   lockstep::TarShards shards({"s3://bucket/train-{000000..000146}.tar"},
//                              {.fetch = "aws s3 cp --quiet {url} {path}",
//                               .cache = "/scratch/cache", .cache_bytes = 100ULL << 30});
//
// Thread safety: any thread may call any member at any time.
// Blocking: the constructor, while indexes are made; reading, while a shard is fetched.
// Errors: corrupt, naming the shard, byte, expected and found, for a damaged shard, a sample with
// two files of one suffix, and a shard that was changed since its index was made; system, with the
// output of a command that failed; misuse.
// Lifetime: a value type whose copies share indexes, open files and the thread that fetches ahead.

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
  // Accepts only plain, complete archives of ustar, pax or GNU tar with nothing but files and
  // folders. All else is an Error: corrupt for the format v7, and for data after the end, or a
  // missing end; unsupported for links, devices, sparse files and compressed shards. Not together
  // with `concatenated`.
  bool strict = false;

  // A shard may be several archives, one after the other, as by cat. Default: only the first one is
  // read, as by WebDataset and tar, and a warning names the rest.
  bool concatenated = false;

  // Folder of the indexes, for shards in folders where this user may not write. Default: beside
  // each shard, as SHARD.index. Not for fetched shards, whose indexes are in the cache.
  std::filesystem::path index_folder = {};

  // Command that copies the shard {url} to the file {path}. It is divided into words at spaces and
  // run without a shell, unless `fetch_by_shell`. Each host fetches every shard once per epoch, or
  // less if its cache holds all.
  std::string fetch = {};
  bool fetch_by_shell = false;

  // Folder of the cache, and the bytes of the shards that it keeps: 64 GiB, or as much as the disk
  // has room for. More than that is an Error. Those that were used least recently are removed. It
  // must hold the shards of two blocks of order(). Indexes, and the shards that are being fetched,
  // one for each rank, come on top. A cached shard is known by its URL: if the one elsewhere is
  // replaced, remove the cache.
  std::filesystem::path cache = {};
  std::optional<std::uint64_t> cache_bytes = {};

  // Without this, every shard is fetched once before training, to make its index.
  // `lockstep shard` and ShardWriter leave SHARD.index beside each shard; if these were uploaded
  // too, they are fetched in place of the shards.
  bool fetch_indexes = false;

  // A command that fails is run again. The pause after the first failure is then doubled, up to a
  // minute. The timeout is that of one attempt.
  int fetch_attempts = 4;  // At most 1000.
  std::chrono::milliseconds fetch_pause = std::chrono::seconds(1);
  std::chrono::milliseconds fetch_timeout = std::chrono::minutes(30);

  // Called by the constructor, on its thread, for each shard whose index is there, with the number
  // of these so far and that of all shards. Where indexes are made, this may take long:
  //   std::optional<lockstep::Progress> progress;
  //   .at_index = [&](std::size_t done, std::size_t shards) {
  //     if (done == 1) progress.emplace(shards, ProgressOptions{.label = "indexes"});
  //     progress->step(0);  // Of samples there are none yet.
  //   }
  std::function<void(std::size_t done, std::size_t shards)> at_index = {};
};

// A sample with the contents of all its files.
struct ShardSample {
  std::string key;
  std::map<std::string, std::string, std::less<>> parts;  // By suffix.
};

class LOCKSTEP_API TarShards {
 public:
  // Each source is a file, a folder, which stands for its files *.tar in the order of their names,
  // or a pattern: {000..146} and {a,b} are written out. With `fetch`, sources are URLs and patterns
  // of URLs.
  explicit TarShards(const std::vector<std::string>& sources, const TarShardsOptions& options = {});

  std::size_t size() const;  // Samples.
  std::size_t shards() const;

  // Entries that were skipped because they are neither files nor folders, such as symbolic links
  // and devices, in all shards.
  std::uint64_t skipped() const;

  // A shuffle that reads a few shards at a time, for DistributedSamplerOptions. More shards mix
  // better; while one block of them is read, the shards of the next are fetched. Keep the order's
  // at_pass: it passes the order of the next shards on. If there are several orders, that of the
  // latest pass applies. Errors: misuse if the cache cannot hold two blocks; unsupported for
  // compressed shards.
  GroupedOrder order(std::size_t shards_per_block = 8) const;

  ShardSample sample(std::size_t index) const;

  std::string key(std::size_t index) const;
  std::vector<std::string> suffixes(std::size_t index) const;  // In the order of the files.

  // Bytes of a sample's part; nothing if it has none of this suffix. A sparse part may claim any
  // size: compare stored_bytes() before you allocate.
  std::optional<std::uint64_t> part_bytes(std::size_t index, std::string_view suffix) const;

  // Bytes of a sample's part that the shard has: as part_bytes(), less the holes of a sparse part,
  // which read as zeros.
  std::optional<std::uint64_t> stored_bytes(std::size_t index, std::string_view suffix) const;

  // Fills `out`, which has part_bytes(). Errors: misuse for a part that does not exist.
  void read_part(std::size_t index, std::string_view suffix, std::span<std::uint8_t> out) const;

  // Samples that are read soon. Shards that lie elsewhere are fetched ahead. Returns at once.
  void will_read(std::span<const std::size_t> indices) const;

  // For messages: "train-000003.tar: cat/7".
  std::string sample_name(std::size_t index) const;

  // A number that differs between datasets whose samples have other names, sizes or places. Copies
  // of the shards have the same.
  std::uint64_t fingerprint() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// --- Images --------------------------------------------------------------------------------------

struct ShardImagesOptions {
  // Suffixes of an image's part; the first that a sample has is taken.
  std::vector<std::string> image = {"jpg", "jpeg", "png", "webp"};

  // Suffix of the part with the class, a number as text.
  std::string label = "cls";
};

// Images in shards, the source of a DecodedImages.
// Errors: in addition, corrupt, naming the sample: from the constructor if one has no part with an
// image or a label, from label() if that part is no number, and from read() if the image is a
// sparse file of more than 1032 bytes for each byte that the shard has.
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
  const TarShards shards_;
  const ShardImagesOptions options_;
};

}  // namespace lockstep
