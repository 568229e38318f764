// The operations of a group, and how reductions combine elements.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/comm/api.h"

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
  split = 14,    // Making sub-groups.
  destroy = 15,  // destroy_process_group().
  allocate_shared = 16,
};

enum class ReduceOp : std::uint8_t {
  sum = 0,
  average = 1,  // The sum, times 1 / world_size. Floating-point types only.
  product = 2,
  min = 3,  // NaN in any rank gives NaN, as in torch.minimum().
  max = 4,
  band = 5,  // Bitwise; integers and bool only, as bor and bxor.
  bor = 6,
  bxor = 7,
};

constexpr int reduce_op_count = 8;

// Whether it combines elements: whether its ReduceOp has a meaning.
constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::reduce_scatter;
}

LOCKSTEP_API std::string_view name(Operation operation);
LOCKSTEP_API std::string_view name(ReduceOp op);

}  // namespace lockstep
