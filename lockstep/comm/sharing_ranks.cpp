// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/sharing_ranks.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <span>

#include "lockstep/comm/group_hooks.h"

namespace lockstep {
namespace {

struct Found {
  std::mutex mutex;
  std::vector<int> first_by_rank;  // Empty before the first call.
};

std::vector<int> look_for_marks(const ProcessGroup& group, std::string_view label) {
  const auto size = static_cast<std::size_t>(group.size());
  const CallOptions options{.label = label};
  const RegisteredMemory memory = group.allocate_shared(size * sizeof(int), options);
  const std::span marks(static_cast<int*>(memory.data()), size);
  marks[static_cast<std::size_t>(group.rank())] = 1;
  group.barrier(options);
  auto first = static_cast<int>(std::ranges::find(marks, 1) - marks.begin());
  std::vector<int> all(size);
  group.all_gather({.data = &first, .count = 1, .dtype = DType::int32},
                   {.data = all.data(), .count = size, .dtype = DType::int32}, {}, options);
  return all;
}

}  // namespace

std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label) {
  const auto found = attachment_of<Found>(group);
  const std::lock_guard lock(found->mutex);
  if (found->first_by_rank.empty()) found->first_by_rank = look_for_marks(group, label);
  return found->first_by_rank;
}

bool all_share_memory(const ProcessGroup& group, std::string_view label) {
  return std::ranges::count(sharing_ranks(group, label), 0) == group.size();
}

}  // namespace lockstep
