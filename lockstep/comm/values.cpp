// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/values.h"

#include <fmt/format.h>

#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Lengths = std::vector<std::int64_t>;

// For calls that do not write to the text.
Buffer text_buffer(std::string_view bytes) {
  return {.data = const_cast<char*>(bytes.data()), .count = bytes.size(), .dtype = DType::uint8};
}

void require_within_limit(std::size_t total, std::string_view what) {
  require(total <= byte_strings_limit, [&] {
    return fmt::format("{}: {} bytes are more than the {} that a call may move", what, total,
                       byte_strings_limit);
  });
}

Counts counts_of(const Lengths& lengths, std::string_view what) {
  Counts counts;
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] < 0 || static_cast<std::uint64_t>(lengths[rank]) > byte_strings_limit)
      throw Error(Fault::corrupt,
                  fmt::format("{}: the string of rank {} has {} bytes", what, rank, lengths[rank]));
    counts.push_back(static_cast<std::size_t>(lengths[rank]));
    total += counts.back();
    require_within_limit(total, what);
  }
  return counts;
}

std::size_t sum_of(const Counts& counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

Counts exchange_lengths(std::string_view bytes, const ProcessGroup& group,
                        const CallOptions& options, std::string_view what) {
  require_within_limit(bytes.size(), what);
  Lengths mine{static_cast<std::int64_t>(bytes.size())};
  Lengths all(static_cast<std::size_t>(group.size()));
  group.all_gather(buffer_of(mine), buffer_of(all), {}, options);
  return counts_of(all, what);
}

std::vector<std::string> parts_of(std::string_view all, const Counts& counts) {
  std::vector<std::string> parts;
  for (const std::size_t count : counts) {
    parts.emplace_back(all.substr(0, count));
    all.remove_prefix(count);
  }
  return parts;
}

}  // namespace

std::string broadcast_bytes(std::string_view bytes, const ProcessGroup& group, int root,
                            const CallOptions& options) {
  const bool sends = group.rank() == root;
  if (sends) require_within_limit(bytes.size(), "broadcast_bytes");
  Lengths length{sends ? static_cast<std::int64_t>(bytes.size()) : 0};
  group.broadcast(buffer_of(length), root, options);
  const Counts counts = counts_of(length, "broadcast_bytes");
  std::string result = sends ? std::string(bytes) : std::string(counts[0], '\0');
  group.broadcast(text_buffer(result), root, options);
  return result;
}

std::vector<std::string> all_gather_bytes(std::string_view bytes, const ProcessGroup& group,
                                          const CallOptions& options) {
  const Counts counts = exchange_lengths(bytes, group, options, "all_gather_bytes");
  std::string all(sum_of(counts), '\0');
  group.all_gather(text_buffer(bytes), text_buffer(all), counts, options);
  return parts_of(all, counts);
}

std::vector<std::string> gather_bytes(std::string_view bytes, const ProcessGroup& group, int root,
                                      const CallOptions& options) {
  const Counts counts = exchange_lengths(bytes, group, options, "gather_bytes");
  const bool receives = group.rank() == root;
  std::string all(receives ? sum_of(counts) : 0, '\0');
  group.gather(text_buffer(bytes), text_buffer(all), root, counts, options);
  return receives ? parts_of(all, counts) : std::vector<std::string>{};
}

std::string scatter_bytes(const std::vector<std::string>& parts, const ProcessGroup& group,
                          int root, const CallOptions& options) {
  const bool sends = group.rank() == root;
  Lengths lengths(static_cast<std::size_t>(group.size()));
  std::string all;
  if (sends) {
    require(parts.size() == lengths.size(), [&] {
      return fmt::format("scatter_bytes: {} strings for {} ranks", parts.size(), lengths.size());
    });
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      require_within_limit(all.size() + parts[rank].size(), "scatter_bytes");
      all += parts[rank];
      lengths[rank] = static_cast<std::int64_t>(parts[rank].size());
    }
  }
  group.broadcast(buffer_of(lengths), root, options);
  const Counts counts = counts_of(lengths, "scatter_bytes");
  std::string result(counts[static_cast<std::size_t>(group.rank())], '\0');
  group.scatter(text_buffer(all), text_buffer(result), root, counts, options);
  return result;
}

}  // namespace lockstep
