// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_identity.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::comm {

int GroupIdentity::world_rank(int group_rank) const {
  if (group_rank < 0 || group_rank >= size) return -1;
  return members.empty() ? group_rank : members[static_cast<std::size_t>(group_rank)];
}

std::chrono::milliseconds GroupIdentity::timeout_of(
    std::optional<std::chrono::milliseconds> requested) const {
  const auto limit = requested.value_or(timeout);
  require(limit.count() >= 0, "a timeout is negative");
  return limit;
}

std::string GroupIdentity::describe(const Collective& collective) const {
  return describe_call(collective, name, rank);
}

std::string GroupIdentity::describe(const Message& message) const {
  return describe_message(message, name, rank);
}

FlightRecordHeader GroupIdentity::record_header(std::string error) const {
  return {name, rank, size, backend, std::move(error)};
}

void GroupIdentity::throw_foreign() const {
  throw Error(
      Fault::misuse,
      fmt::format("group {} belongs to process {}; process {} was fork()ed and cannot use it", name,
                  pid, this_process()));
}

}  // namespace lockstep::comm
