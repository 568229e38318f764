// Element types, reductions, buffers and message origins of a group's calls.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Sums and products of integers wrap, as in LibTorch. Part of the engine ABI: values are frozen;
// append new ones.
enum class DType : std::uint8_t {
  float32 = 0,
  float64 = 1,
  int64 = 2,
  bfloat16 = 3,  // Summed in float32; rounded to nearest even on each host and between hosts.
  uint8 = 4,
  float16 = 5,  // Summed like bfloat16.
  int8 = 6,
  int16 = 7,
  int32 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  boolean = 12,  // One byte; every value but 0 is true. A sum is "or", a product is "and".
};

constexpr int dtype_count = 13;

template <class T>
constexpr DType dtype_of = [] {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return DType::float32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::float64;
  else {
    static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "there is no DType of this type");
    constexpr DType of_signed[] = {DType::int8, DType::int16, DType::int32, DType::int64};
    constexpr DType of_unsigned[] = {DType::uint8, DType::uint16, DType::uint32, DType::uint64};
    constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? of_signed[log2] : of_unsigned[log2];
  }
}();

LOCKSTEP_API std::string_view name(DType dtype);

// Bytes of one element.
LOCKSTEP_API std::size_t size_of(DType dtype);

// Stored in call signatures: values are frozen.
enum class ReduceOp : std::uint8_t {
  sum = 0,
  average = 1,  // Sum times 1 / size(). Truncates integers towards zero. Refuses booleans.
  product = 2,
  // min and max are NaN if any rank's element is NaN, as torch.minimum() and torch.maximum().
  min = 3,
  max = 4,
  band = 5,  // Bitwise operations take only integers and bool.
  bor = 6,
  bxor = 7,
};

constexpr int reduce_op_count = 8;

LOCKSTEP_API std::string_view name(ReduceOp op);

enum class DeviceKind : std::uint8_t { cpu = 0, cuda = 1 };

// Contiguous elements. Does not own `data`, which must stay valid until the call is complete. Part
// of the engine ABI: the layout is frozen.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  // Elements, not bytes.
  DType dtype = DType::float32;
  DeviceKind device = DeviceKind::cpu;
  int device_index = 0;
  void* stream = nullptr;  // CUDA stream on which `data` is ready; null for CPU.

  std::size_t bytes() const { return count * size_of(dtype); }
};

// From a vector, array or span. Not for float16 and bfloat16, which C++20 lacks.
template <std::ranges::contiguous_range Values>
Buffer buffer_of(Values& values) {
  using Value = std::remove_const_t<std::ranges::range_value_t<Values>>;
  return {.data = const_cast<Value*>(std::ranges::data(values)),
          .count = std::ranges::size(values),
          .dtype = dtype_of<Value>};
}

// Elements of each rank's part, in rank order; except in all_to_all(), the same on all ranks. Parts
// are contiguous in their buffer. Empty for equal parts.
using Counts = std::vector<std::size_t>;

// Zero-initialized memory of ProcessGroup::allocate() and its variants, mapped by the host's ranks.
// Large collectives copy nothing if all ranks' buffers lie in such memory.
// Thread safety: as a shared_ptr.
// Lifetime: mapped until the last handle is destroyed, even after the group's end.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;

  // `owner` keeps the memory mapped.
  RegisteredMemory(std::shared_ptr<const void> owner, void* data, std::size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}

  // This rank's own part, 64-byte aligned; peers write into it during collectives only. With
  // allocate_shared(), the one block.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

constexpr int any_source = -1;
constexpr std::int64_t any_tag = -1;

// Sender and tag of a received message.
struct Source {
  int rank = any_source;
  std::int64_t tag = any_tag;
};

}  // namespace lockstep
