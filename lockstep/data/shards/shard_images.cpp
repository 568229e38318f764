// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/shards/tar_shards.h"

namespace lockstep {

ShardImages::ShardImages(TarShards shards, ShardImagesOptions options)
    : shards_(std::move(shards)), options_(std::move(options)) {}

std::int64_t ShardImages::label(std::size_t index) const {
  const auto bytes = shards_.part_bytes(index, options_.label);
  constexpr std::uint64_t longest = 32;
  if (!bytes || *bytes > longest)
    throw Error(Fault::corrupt,
                name(index) + ": the sample has no part '" + options_.label + "' with a class");
  std::string text(*bytes, '\0');
  shards_.read_part(index, options_.label,
                    {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  text.resize(text.find_last_not_of(" \r\n") + 1);
  std::int64_t label = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(Fault::corrupt, name(index) + ": its part '" + options_.label + "' is '" +
                                    clean_text(text) + "', not the number of a class");
  return label;
}

std::span<const std::uint8_t> ShardImages::read(std::size_t index, EncodedBuffer& buffer) const {
  for (const std::string& suffix : options_.image) {
    const auto bytes = shards_.part_bytes(index, suffix);
    if (!bytes) continue;
    const auto image = buffer.take(*bytes);
    shards_.read_part(index, suffix, image);
    return image;
  }
  throw Error(Fault::corrupt, name(index) + ": the sample has no part with an image");
}

void ShardImages::will_read(std::span<const std::size_t> indices) const {
  shards_.will_read(indices);
}

std::string ShardImages::name(std::size_t index) const { return shards_.sample_name(index); }

}  // namespace lockstep
