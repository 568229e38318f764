// A value in memory that processes share, which a writer may overwrite while readers copy it.
//
// Each word is atomic, so a copy taken during a write may mix old and new words. The owner keeps a
// version beside the value. The writer changes the version before store() and again after it. A
// reader loads the version before and after load(), and drops the copy if the two differ. Words are
// stored with release, so a reader that has a new word also has the version from before it. Words
// are loaded with acquire, so they come before the second load of the version. Fences would do the
// same, but ThreadSanitizer does not know them.
//
// Source: H. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.

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
