// Single values between ranks: numbers, enumerations, and plain structs of these.
//
//   const auto losses = all_gather_value(loss, group);  // losses[r] is rank r's.
//   const auto seed = broadcast_value(std::random_device{}(), group);
//
// Values are sent as they lie in memory, so they must contain no pointer. Send other types as byte
// strings (lockstep/comm/bytes.h), for example json::parse(broadcast_bytes(settings.dump(),
// group)).
// Blocking, Errors: as ProcessGroup's; mismatch when the ranks' values have different sizes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The part of "contains no pointer" that a compiler can check.
template <class T>
concept PlainValue = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                     !std::is_member_pointer_v<T> && !std::is_convertible_v<T, std::string_view>;

// Returns rank `root`'s value.
template <PlainValue T>
T broadcast_value(const T& value, const ProcessGroup& group, int root = 0,
                  const CallOptions& options = {}) {
  auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  group.broadcast({.data = bytes.data(), .count = bytes.size(), .dtype = DType::uint8}, root,
                  options);
  return std::bit_cast<T>(bytes);
}

// Returns all ranks' values, in rank order.
template <PlainValue T>
std::vector<T> all_gather_value(const T& value, const ProcessGroup& group,
                                const CallOptions& options = {}) {
  using Bytes = std::array<std::byte, sizeof(T)>;
  auto mine = std::bit_cast<Bytes>(value);
  std::vector<Bytes> all(static_cast<std::size_t>(group.size()));
  group.all_gather({.data = mine.data(), .count = mine.size(), .dtype = DType::uint8},
                   {.data = all.data(), .count = all.size() * sizeof(T), .dtype = DType::uint8}, {},
                   options);
  std::vector<T> values;
  for (const Bytes& bytes : all) values.push_back(std::bit_cast<T>(bytes));
  return values;
}

}  // namespace lockstep
