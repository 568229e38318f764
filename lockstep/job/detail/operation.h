// The operations of a group, and what distinguishes them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
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

// A collective's data. A buffer with parts has one for each rank, in rank order, without gaps.
enum class OperationShape : std::uint8_t {
  none,         // Not a call of Backend::run().
  barrier,      // No data: complete when all ranks have entered.
  in_place,     // `output`, on all ranks.
  collects,     // `output` has parts, and rank r's `input` is part r.
  distributes,  // `input` has parts, and `output` is part rank().
  exchanges,    // Both have parts.
};

// Whether one rank is the source or target of all data.
enum class OperationRoot : std::uint8_t { no, from, to };

struct OperationFacts {
  Operation operation = Operation::none;
  std::string_view name = {};
  OperationShape shape = OperationShape::none;
  OperationRoot rooted = OperationRoot::no;
  bool reduces = false;  // Combines elements with a ReduceOp (comm/core/buffer.h).
};

// In the order of their values.
inline constexpr OperationFacts operation_table[] = {
    {Operation::none, "none"},
    {Operation::all_reduce, "all_reduce", OperationShape::in_place, OperationRoot::no, true},
    {Operation::broadcast, "broadcast", OperationShape::in_place, OperationRoot::from},
    {Operation::all_gather, "all_gather", OperationShape::collects},
    {Operation::barrier, "barrier", OperationShape::barrier},
    {Operation::allocate, "allocate"},
    {Operation::reduce, "reduce", OperationShape::in_place, OperationRoot::to, true},
    {Operation::reduce_scatter, "reduce_scatter", OperationShape::distributes, OperationRoot::no,
     true},
    {Operation::gather, "gather", OperationShape::collects, OperationRoot::to},
    {Operation::scatter, "scatter", OperationShape::distributes, OperationRoot::from},
    {Operation::all_to_all, "all_to_all", OperationShape::exchanges},
    {Operation::send, "send"},
    {Operation::recv, "recv"},
    {Operation::monitored_barrier, "monitored_barrier", OperationShape::barrier},
    {Operation::split, "split"},
    {Operation::destroy, "destroy_process_group"},
    {Operation::allocate_shared, "allocate_shared"},
};

static_assert([] {
  std::size_t value = 0;
  for (const OperationFacts& row : operation_table)
    if (static_cast<std::size_t>(row.operation) != value++) return false;
  return true;
}());

inline constexpr OperationFacts unknown_operation{.name = "unknown"};

// `operation` may come from another process and have any value.
constexpr const OperationFacts& facts_of(Operation operation) {
  const auto value = static_cast<std::size_t>(operation);
  return value < std::size(operation_table) ? operation_table[value] : unknown_operation;
}

constexpr std::string_view name(Operation operation) { return facts_of(operation).name; }
constexpr bool reduces(Operation operation) { return facts_of(operation).reduces; }
constexpr OperationShape shape_of(Operation operation) { return facts_of(operation).shape; }

constexpr bool has_input_parts(Operation operation) {
  return shape_of(operation) == OperationShape::distributes ||
         shape_of(operation) == OperationShape::exchanges;
}

constexpr bool has_output_parts(Operation operation) {
  return shape_of(operation) == OperationShape::collects ||
         shape_of(operation) == OperationShape::exchanges;
}

constexpr bool is_message(Operation operation) {
  return operation == Operation::send || operation == Operation::recv;
}

}  // namespace lockstep
