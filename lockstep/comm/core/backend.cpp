// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/backend.h"

#include <fmt/format.h>

namespace lockstep::comm {

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
