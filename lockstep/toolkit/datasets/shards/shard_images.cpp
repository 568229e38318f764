// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/deflate.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"

namespace lockstep {
namespace {

// Bytes of a sparse image per stored byte: as many as deflate can produce.
constexpr auto most_bytes_for_stored = static_cast<std::uint64_t>(datasets::most_bytes_for_one);

std::string joined(const std::vector<std::string>& suffixes) {
  std::string text;
  for (const std::string& each : suffixes)
    text += (text.empty() ? "'" : ", '") + clean_text(each) + "'";
  return text;
}

}  // namespace

ShardImages::ShardImages(TarShards shards, ShardImagesOptions options)
    : shards_(std::move(shards)), options_(std::move(options)) {
  for (std::size_t index = 0; index < size(); ++index) {
    const std::vector<std::string> found = shards_.suffixes(index);
    const auto has = [&](const std::string& suffix) {
      return std::ranges::find(found, suffix) != found.end();
    };
    const bool has_image = std::ranges::any_of(options_.image, has);
    if (!has_image || !has(options_.label)) refuse(index, has_image);
  }
}

void ShardImages::refuse(std::size_t index, bool has_image) const {
  const std::string lacking = has_image ? "'" + options_.label + "' with a class"
                                        : "with an image, " + joined(options_.image);
  const std::string option = has_image ? "label" : "image";
  throw Error(Fault::corrupt,
              name(index) + ": the sample has no part " + lacking + ", but " +
                  joined(shards_.suffixes(index)) +
                  ". A sample has an image, such as KEY.jpg, and its class as a number in KEY." +
                  options_.label +
                  ". Create such shards from folders of classes with `lockstep "
                  "shard FOLDER --labels`, or set ShardImagesOptions::" +
                  option);
}

std::int64_t ShardImages::label(std::size_t index) const {
  const std::uint64_t bytes = shards_.part_bytes(index, options_.label).value();
  constexpr std::uint64_t longest = 32;
  if (bytes > longest)
    throw Error(Fault::corrupt, name(index) + ": its part '" + options_.label + "' has " +
                                    std::to_string(bytes) + " bytes, not the number of a class");
  std::string text(bytes, '\0');
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
  const auto suffix = std::ranges::find_if(options_.image, [&](const std::string& each) {
    return shards_.part_bytes(index, each).has_value();
  });
  const std::uint64_t bytes = shards_.part_bytes(index, *suffix).value();
  const std::uint64_t stored = shards_.stored_bytes(index, *suffix).value();
  if (bytes / most_bytes_for_stored > stored)
    throw Error(Fault::corrupt, name(index) + ": its part '" + *suffix + "' claims " +
                                    std::to_string(bytes) + " bytes, and the shard has " +
                                    std::to_string(stored) +
                                    " of them: archive it without --sparse");
  const auto image = buffer.take(bytes);
  shards_.read_part(index, *suffix, image);
  return image;
}

void ShardImages::will_read(std::span<const std::size_t> indices) const {
  shards_.will_read(indices);
}

std::string ShardImages::name(std::size_t index) const { return shards_.sample_name(index); }

}  // namespace lockstep
