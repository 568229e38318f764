// The operations of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Stored in the job page and in call signatures: values are frozen.
enum class Operation : std::uint8_t {
  none = 0,
  all_reduce = 1,
  broadcast = 2,
  all_gather = 3,
  barrier = 4,
  allocate = 5,
  reduce = 6,
  reduce_scatter = 7,
  gather = 8,
  scatter = 9,
  all_to_all = 10,
  send = 11,
  recv = 12,
  monitored_barrier = 13,
  split = 14,    // Makes sub-groups.
  destroy = 15,  // destroy_process_group().
  allocate_shared = 16,
};

// Whether the operation combines elements, so that its ReduceOp (comm/core/buffer.h) has a meaning.
constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::reduce_scatter;
}

LOCKSTEP_API std::string_view name(Operation operation);

}  // namespace lockstep
