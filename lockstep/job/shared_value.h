// A value in shared memory that a writer may overwrite while readers copy it.
//
// The owner keeps a version beside the value, changed before and after store(). A reader drops a
// copy if the version changed during load(): docs/internals/memory-order.md, and H. Boehm, "Can
// seqlocks get along with programming language memory models?", MSPC 2012.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lockstep::job {

// Memory of zeros is a Value of zeros.
template <class Value>
class SharedValue {
  static_assert(std::is_trivially_copyable_v<Value>);

 public:
  // Async-signal-safe. One thread at a time.
  void store(const Value& value) {
    const auto* const from = reinterpret_cast<const std::byte*>(&value);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      Word word = 0;
      std::memcpy(&word, from + i * sizeof word, bytes_of(i));
      words_[i].store(word, std::memory_order_release);
    }
  }

  Value load() const {
    Value value;
    auto* const to = reinterpret_cast<std::byte*>(&value);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const Word word = words_[i].load(std::memory_order_acquire);
      std::memcpy(to + i * sizeof word, &word, bytes_of(i));
    }
    return value;
  }

 private:
  using Word = std::uint64_t;

  static constexpr std::size_t bytes_of(std::size_t word) {
    return std::min(sizeof(Word), sizeof(Value) - word * sizeof(Word));
  }

  std::array<std::atomic<Word>, (sizeof(Value) + sizeof(Word) - 1) / sizeof(Word)> words_;
};

}  // namespace lockstep::job
