// The operations of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// Stored in the job control block and in call signatures: values are frozen.
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

// Whether it combines elements with a ReduceOp (comm/core/buffer.h).
constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::reduce_scatter;
}

constexpr bool is_message(Operation operation) {
  return operation == Operation::send || operation == Operation::recv;
}

constexpr std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "none";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::barrier:
      return "barrier";
    case Operation::allocate:
      return "allocate";
    case Operation::reduce:
      return "reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
    case Operation::monitored_barrier:
      return "monitored_barrier";
    case Operation::split:
      return "split";
    case Operation::destroy:
      return "destroy_process_group";
    case Operation::allocate_shared:
      return "allocate_shared";
  }
  return "unknown";
}

}  // namespace lockstep
