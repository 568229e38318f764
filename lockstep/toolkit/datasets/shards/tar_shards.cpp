// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/tar_shards.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/toolkit/datasets/input_file.h"
#include "lockstep/toolkit/datasets/shards/compressed_shards.h"
#include "lockstep/toolkit/datasets/shards/fetched_shards.h"
#include "lockstep/toolkit/datasets/shards/local_shards.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_names.h"

namespace lockstep {
namespace {

using datasets::ShardIndex;
using datasets::ShardPart;
using datasets::ShardSource;

std::unique_ptr<ShardSource> make_shard_source(const std::vector<std::string>& sources,
                                               const TarShardsOptions& options) {
  require(!options.strict || !options.concatenated,
          "TarShardsOptions: `strict` accepts one archive in each shard, and `concatenated` reads "
          "several: set one of them only");
  const datasets::TarOptions tar{.concatenated = options.concatenated};
  if (options.fetch.empty()) {
    require(options.cache.empty() && !options.fetch_indexes && !options.fetch_by_shell,
            "TarShardsOptions: a cache is only for shards that are fetched: set `fetch`");
    return std::make_unique<datasets::LocalShards>(datasets::list_local_shards(sources),
                                                   options.index_folder, tar);
  }
  require(!options.cache.empty(), "TarShardsOptions: `fetch` needs `cache`, a folder");
  require(options.index_folder.empty(),
          "TarShardsOptions: indexes of fetched shards are in the cache, not in index_folder");
  return std::make_unique<datasets::FetchedShards>(
      datasets::list_remote_shards(sources),
      datasets::FetchCommand(options.fetch, options.fetch_by_shell, options.fetch_timeout),
      datasets::ShardCache(options.cache, options.cache_bytes),
      datasets::FetchPolicy{.attempts = options.fetch_attempts,
                            .pause = options.fetch_pause,
                            .fetch_indexes = options.fetch_indexes,
                            .tar = tar});
}

// Ranks of a host share the work: each first creates indexes that no other is creating.
void provide_indexes(ShardSource& source, const TarShardsOptions& options) {
  std::size_t done = 0;
  const auto count = [&] {
    if (options.at_index) options.at_index(++done, source.shards());
  };
  std::vector<std::size_t> others;
  for (std::size_t shard = 0; shard < source.shards(); ++shard)
    source.provide_index(shard, /*wait=*/false) ? count() : others.push_back(shard);
  for (const std::size_t shard : others) {
    source.provide_index(shard, /*wait=*/true);
    count();
  }
}

class ShardPass {
 public:
  void begin(const std::vector<std::size_t>& shards) {
    const std::lock_guard lock(mutex_);
    shards_ = shards;
    places_.assign(shards.size(), 0);
    for (std::size_t place = 0; place < shards.size(); ++place) places_[shards[place]] = place;
  }

  // `shards`, then the pass's next `count`.
  std::vector<std::size_t> with_next(std::vector<std::size_t> shards, std::size_t count) {
    const std::lock_guard lock(mutex_);
    if (shards_.empty() || shards.empty()) return shards;
    std::ranges::sort(shards, {}, [&](std::size_t shard) { return places_[shard]; });
    const std::size_t next = places_[shards.back()] + 1;
    const std::size_t end = std::min(next + count, shards_.size());
    for (std::size_t place = next; place < end; ++place) shards.push_back(shards_[place]);
    return shards;
  }

 private:
  std::mutex mutex_;
  std::vector<std::size_t> shards_;  // Empty before the first pass.
  std::vector<std::size_t> places_;  // Inverse of `shards_`.
};

void warn_of_unread(const ShardSource& source, const std::vector<ShardIndex>& indexes) {
  std::uint64_t skipped = 0;
  std::size_t cut = 0;
  std::string first_skipped, first_cut;
  const auto text_in = [&](std::size_t shard, std::string_view text) {
    return clean_text(source.name(shard)) + ": " + clean_text(text);
  };
  for (std::size_t shard = 0; shard < indexes.size(); ++shard) {
    const datasets::ShardIndexView& index = indexes[shard].view();
    if (skipped == 0 && index.skipped() > 0) first_skipped = text_in(shard, index.first_skipped());
    skipped += index.skipped();
    if (index.unread().empty()) continue;
    if (cut++ == 0) first_cut = text_in(shard, index.unread());
  }
  if (skipped > 0)
    log(LogLevel::warning, "TarShards: " + std::to_string(skipped) +
                               " entries that are neither files nor folders were skipped; the "
                               "first one is " +
                               first_skipped);
  if (cut > 0)
    log(LogLevel::warning, "TarShards: " + std::to_string(cut) +
                               " shards do not end as an archive does; the first one is " +
                               first_cut);
}

}  // namespace

struct TarShards::State {
  State(const std::vector<std::string>& sources, const TarShardsOptions& options)
      : source(make_shard_source(sources, options)) {
    provide_indexes(*source, options);
    indexes.reserve(source->shards());
    for (std::size_t shard = 0; shard < source->shards(); ++shard) {
      const ShardIndex& index = indexes.emplace_back(source->index_path(shard));
      firsts.push_back(firsts.back() + index->samples());
      largest = std::max(largest, index->shard().size);
      if (options.strict) index->require_strict(source->name(shard));
    }
    warn_of_unread(*source, indexes);
    require(firsts.back() > 0,
            [&] { return source->name(0) + ": there are no samples in the shards"; });
  }

  struct Place {
    std::size_t shard;
    std::size_t sample;
  };

  std::size_t shard_of(std::size_t index) const {
    require(index < firsts.back(), [&] {
      return "TarShards: sample " + std::to_string(index) + " of " + std::to_string(firsts.back());
    });
    const auto next = std::ranges::upper_bound(firsts, index);
    return static_cast<std::size_t>(next - firsts.begin()) - 1;
  }

  Place place(std::size_t index) const {
    const std::size_t shard = shard_of(index);
    return {shard, index - firsts[shard]};
  }

  std::vector<ShardPart> parts(const Place& place) const {
    const ShardIndex& index = indexes[place.shard];
    std::vector<ShardPart> found;
    const std::size_t end = index->first_part(place.sample + 1);
    for (std::size_t part = index->first_part(place.sample); part < end; ++part)
      found.push_back(index->part(part));
    return found;
  }

  std::optional<ShardPart> find(const Place& place, std::string_view suffix) const {
    for (const ShardPart& part : parts(place))
      if (datasets::divide_name(part.name)->suffix == suffix) return part;
    return std::nullopt;
  }

  std::shared_ptr<const datasets::OpenShard> open(std::size_t shard) const {
    return source->open(shard, indexes[shard].view());
  }

  void read(std::size_t shard, const std::shared_ptr<const datasets::OpenShard>& open,
            const ShardPart& part, std::span<std::byte> out) {
    const auto extents = indexes[shard]->extents(part.number);
    if (extents.empty()) return read_bytes(shard, open, part.offset, out);
    std::ranges::fill(out, std::byte{0});
    for (const auto& each : extents)
      read_bytes(shard, open, each.offset, out.subspan(each.at, each.size));
  }

  void read_bytes(std::size_t shard, const std::shared_ptr<const datasets::OpenShard>& open,
                  std::uint64_t offset, std::span<std::byte> out) {
    if (indexes[shard]->is_compressed()) return compressed.read(shard, open, offset, out);
    datasets::read_exactly_at(open->fd, open->name, offset, out);
  }

  void require_memory(std::size_t shard, const ShardPart& part) const {
    if (!indexes[shard]->extents(part.number).empty())
      datasets::require_memory_for(source->name(shard), part.size);
  }

  const std::unique_ptr<ShardSource> source;
  std::vector<ShardIndex> indexes;
  // Each shard's first sample, then the number of all.
  std::vector<std::size_t> firsts = {0};
  std::uint64_t largest = 0;  // In bytes.
  datasets::CompressedShards compressed;
  ShardPass pass;
  std::atomic<std::size_t> ahead = 1;  // Shards to prefetch.
};

TarShards::TarShards(const std::vector<std::string>& sources, const TarShardsOptions& options)
    : state_(std::make_shared<State>(sources, options)) {}

std::size_t TarShards::size() const { return state_->firsts.back(); }

std::size_t TarShards::shards() const { return state_->indexes.size(); }

std::uint64_t TarShards::skipped() const {
  std::uint64_t skipped = 0;
  for (const ShardIndex& index : state_->indexes) skipped += index->skipped();
  return skipped;
}

GroupedOrder TarShards::order(std::size_t shards_per_block) const {
  require(shards_per_block > 0, "TarShards::order(): at least one shard is needed in a block");
  const std::uint64_t shards_kept = 2 * std::min<std::uint64_t>(shards_per_block, shards());
  const auto capacity = state_->source->capacity();
  require(!capacity || *capacity / shards_kept >= state_->largest, [&] {
    return "TarShards::order(): two blocks of " + std::to_string(shards_per_block) +
           " shards of up to " + std::to_string(state_->largest) +
           " bytes do not fit into the cache of " + std::to_string(*capacity) +
           " bytes: smaller blocks mix less, a larger cache needs more of the disk";
  });
  for (std::size_t shard = 0; shard < shards(); ++shard)
    if (state_->indexes[shard]->is_compressed())
      throw Error(Fault::unsupported,
                  "TarShards::order(): " + state_->source->name(shard) +
                      ": the shard is compressed, and its samples can be read in order only: "
                      "decompress it, with gunzip or unzstd, or read it without a shuffle");
  GroupedOrder order{.group_sizes = {},
                     .groups_per_block = shards_per_block,
                     .fingerprint = fingerprint(),
                     .at_pass = {}};
  for (std::size_t shard = 0; shard < shards(); ++shard)
    order.group_sizes.push_back(state_->indexes[shard]->samples());
  state_->ahead = shards_per_block;
  order.at_pass = [state = state_](const std::vector<std::size_t>& shards) {
    state->pass.begin(shards);
  };
  return order;
}

ShardSample TarShards::sample(std::size_t index) const {
  const State::Place place = state_->place(index);
  ShardSample sample{.key = key(index), .parts = {}};
  const auto open = state_->open(place.shard);
  for (const ShardPart& part : state_->parts(place)) {
    std::string& content = sample.parts[datasets::divide_name(part.name)->suffix];
    state_->require_memory(place.shard, part);
    content.resize(part.size);
    state_->read(place.shard, open, part, std::as_writable_bytes(std::span(content)));
  }
  return sample;
}

std::string TarShards::key(std::size_t index) const {
  const State::Place place = state_->place(index);
  return std::string(state_->indexes[place.shard]->key(place.sample));
}

std::vector<std::string> TarShards::suffixes(std::size_t index) const {
  std::vector<std::string> found;
  for (const ShardPart& part : state_->parts(state_->place(index)))
    found.push_back(datasets::divide_name(part.name)->suffix);
  return found;
}

std::optional<std::uint64_t> TarShards::part_bytes(std::size_t index,
                                                   std::string_view suffix) const {
  const auto part = state_->find(state_->place(index), suffix);
  return part ? std::optional(part->size) : std::nullopt;
}

std::optional<std::uint64_t> TarShards::stored_bytes(std::size_t index,
                                                     std::string_view suffix) const {
  const State::Place place = state_->place(index);
  const auto part = state_->find(place, suffix);
  return part ? std::optional(state_->indexes[place.shard]->stored_bytes(*part)) : std::nullopt;
}

void TarShards::read_part(std::size_t index, std::string_view suffix,
                          std::span<std::uint8_t> out) const {
  const State::Place place = state_->place(index);
  const auto part = state_->find(place, suffix);
  require(part && part->size == out.size(), [&] {
    return sample_name(index) + ": it has no part '" + clean_text(suffix) + "' of " +
           std::to_string(out.size()) + " bytes";
  });
  state_->read(place.shard, state_->open(place.shard), *part, std::as_writable_bytes(out));
}

void TarShards::will_read(std::span<const std::size_t> indices) const {
  if (!state_->source->capacity()) return;
  std::vector<std::size_t> shards;
  for (const std::size_t index : indices)
    if (const std::size_t shard = state_->shard_of(index);
        std::ranges::find(shards, shard) == shards.end())
      shards.push_back(shard);
  state_->source->will_open(state_->pass.with_next(std::move(shards), state_->ahead));
}

std::string TarShards::sample_name(std::size_t index) const {
  return state_->source->name(state_->shard_of(index)) + ": " + clean_text(key(index));
}

std::uint64_t TarShards::fingerprint() const {
  std::vector<std::uint64_t> shards;
  for (const ShardIndex& index : state_->indexes) shards.push_back(index->fingerprint());
  return hash_of_elements(shards);
}

}  // namespace lockstep
