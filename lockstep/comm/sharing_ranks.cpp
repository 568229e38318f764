// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/sharing_ranks.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "lockstep/comm/values.h"

namespace lockstep {

std::vector<int> sharing_ranks(const ProcessGroup& group, std::string_view label) {
  const auto size = static_cast<std::size_t>(group.size());
  const RegisteredMemory memory = group.allocate_shared(size * sizeof(int), {.label = label});
  const std::span marks(static_cast<int*>(memory.data()), size);
  marks[static_cast<std::size_t>(group.rank())] = 1;
  group.barrier();
  const auto first = static_cast<int>(std::ranges::find(marks, 1) - marks.begin());
  return all_gather_value(first, group);
}

}  // namespace lockstep
