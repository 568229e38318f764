// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/backend.h"

#include <fmt/format.h>

namespace lockstep::comm {

PartCounts part_counts(const Collective& collective, int rank, int size) {
  const Operation operation = collective.signature.operation;
  const auto n = static_cast<std::size_t>(size);
  const auto me = static_cast<std::size_t>(rank);
  const std::span<const std::size_t> counts = collective.counts;
  PartCounts parts;
  if (shape_of(operation) == OperationShape::exchanges && !counts.empty()) {
    for (std::size_t peer = 0; peer < n; ++peer) {
      parts.sent.push_back(counts[me * n + peer]);
      parts.received.push_back(counts[peer * n + me]);
    }
    return parts;
  }
  const auto fill = [&](std::vector<std::size_t>& all) {
    counts.empty() ? all.assign(n, collective.signature.count)
                   : all.assign(counts.begin(), counts.end());
  };
  if (has_input_parts(operation)) fill(parts.sent);
  if (has_output_parts(operation)) fill(parts.received);
  return parts;
}

std::string describe_call(const Collective& collective, std::string_view group, int rank) {
  return fmt::format("{} #{} of group {} on rank {}", name(collective.signature.operation),
                     collective.sequence, group, rank);
}

std::string describe_message(const Message& message, std::string_view group, int rank) {
  const bool sends = message.operation == Operation::send;
  const auto peer = message.peer == any_source ? "any rank" : fmt::format("rank {}", message.peer);
  const auto tag = message.tag == any_tag ? "any tag" : fmt::format("tag {}", message.tag);
  return fmt::format("{} of {} {} {} {} with {} in group {} on rank {}", name(message.operation),
                     message.buffer.count, name(message.buffer.dtype), sends ? "to" : "from", peer,
                     tag, group, rank);
}

}  // namespace lockstep::comm
