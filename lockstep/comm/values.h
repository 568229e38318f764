// Single values and byte strings between ranks.
//
//   const auto losses = all_gather_value(loss, group);  // losses[r] is rank r's.
//   const auto seed = broadcast_value(std::random_device{}(), group);
//   const std::string settings = broadcast_bytes(group.rank() == 0 ? read(path) : "", group);
//   const auto hosts = all_gather_bytes(host_name(), group);
//
// Values must contain no pointer: their bytes are sent unchanged. Send other types as byte strings,
// such as settings.dump(). Each call for byte strings is two collectives with one timeout each.
// Limit: 1 GiB for all strings of a call.
// Blocking: as ProcessGroup.
// Errors: as ProcessGroup. Mismatch when values have different sizes. Misuse beyond the limit: on
// the sender, before it sends; on all ranks if only the sum of a gather is too large. Corrupt for
// an impossible length.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// The part of "contains no pointer" that a compiler can check.
template <class T>
concept PlainValue = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                     !std::is_member_pointer_v<T> && !std::is_convertible_v<T, std::string_view>;

template <PlainValue T>
T broadcast_value(const T& value, const ProcessGroup& group, int root = 0,
                  const CallOptions& options = {}) {
  auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  group.broadcast({.data = bytes.data(), .count = bytes.size(), .dtype = DType::uint8}, root,
                  options);
  return std::bit_cast<T>(bytes);
}

template <PlainValue T>
std::vector<T> all_gather_value(const T& value, const ProcessGroup& group,
                                const CallOptions& options = {}) {
  using Element = std::array<std::byte, sizeof(T)>;
  auto mine = std::bit_cast<Element>(value);
  std::vector<Element> all(static_cast<std::size_t>(group.size()));
  group.all_gather({.data = mine.data(), .count = mine.size(), .dtype = DType::uint8},
                   {.data = all.data(), .count = all.size() * sizeof(T), .dtype = DType::uint8}, {},
                   options);
  std::vector<T> values;
  for (const Element& bytes : all) values.push_back(std::bit_cast<T>(bytes));
  return values;
}

inline constexpr std::size_t byte_strings_limit = std::size_t{1} << 30;

// Returns rank `root`'s bytes; ignores `bytes` of other ranks.
LOCKSTEP_API std::string broadcast_bytes(std::string_view bytes, const ProcessGroup& group,
                                         int root = 0, const CallOptions& options = {});

LOCKSTEP_API std::vector<std::string> all_gather_bytes(std::string_view bytes,
                                                       const ProcessGroup& group,
                                                       const CallOptions& options = {});

// Returns all ranks' bytes on rank `root`, in rank order; nothing on the others.
LOCKSTEP_API std::vector<std::string> gather_bytes(std::string_view bytes,
                                                   const ProcessGroup& group, int root = 0,
                                                   const CallOptions& options = {});

// Returns part rank() of rank `root`'s `parts`, one for each rank; ignores `parts` of other ranks.
LOCKSTEP_API std::string scatter_bytes(const std::vector<std::string>& parts,
                                       const ProcessGroup& group, int root = 0,
                                       const CallOptions& options = {});

}  // namespace lockstep
