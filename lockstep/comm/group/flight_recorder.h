// The last operations of a group on this rank, with times and progress.
//
// Thread safety: one thread records at a time; any other may call json() meanwhile.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/core/signature.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class FlightRecorder {
 public:
  static constexpr std::size_t capacity = 256;

  enum class Phase : std::uint8_t { entered, completed, failed };

  // Returns the number for leave().
  std::uint64_t enter(const Signature& signature, std::uint64_t sequence, Ticks now) {
    constexpr auto release = std::memory_order_release;  // After `begun_`: see json().
    const std::uint64_t number = recorded_.load(std::memory_order_relaxed);
    begun_.store(number + 1, std::memory_order_relaxed);
    Entry& entry = entries_[number % capacity];
    entry.sequence.store(sequence, release);
    entry.count.store(signature.count, release);
    entry.label.store(signature.label, release);
    entry.entered.store(now, release);
    entry.left.store(0, release);
    entry.root.store(signature.root, release);
    entry.operation.store(signature.operation, release);
    entry.dtype.store(signature.dtype, release);
    entry.op.store(signature.op, release);
    entry.phase.store(Phase::entered, release);
    recorded_.store(number + 1, release);
    return number;
  }

  void leave(std::uint64_t number, Phase phase, Ticks now) {
    if (recorded_.load(std::memory_order_relaxed) - number > capacity) return;  // Overwritten.
    Entry& entry = entries_[number % capacity];
    entry.left.store(now, std::memory_order_relaxed);
    entry.phase.store(phase, std::memory_order_release);  // After `left`.
  }

  // A JSON array, oldest first. Times are microseconds of the steady clock.
  std::string json() const;

 private:
  struct alignas(64) Entry {  // One cache line.
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> label{0};  // Signature::label.
    std::atomic<Ticks> entered{0};
    std::atomic<Ticks> left{0};  // 0 while it runs.
    std::atomic<std::int32_t> root{0};
    std::atomic<Operation> operation{};
    std::atomic<DType> dtype{};
    std::atomic<ReduceOp> op{};
    std::atomic<Phase> phase{};
  };

  std::array<Entry, capacity> entries_;
  std::atomic<std::uint64_t> begun_{0};     // Number of operations with a started entry,
  std::atomic<std::uint64_t> recorded_{0};  // and of those with a complete entry.
};

struct FlightRecordHeader {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string backend;
  std::string error = {};  // Empty when the user asked for the record.
};

// A JSON object: docs/protocol.md.
std::string flight_record(const FlightRecordHeader& header, const FlightRecorder& collectives,
                          const FlightRecorder& messages);

// Saves `json` in a file, or else logs it: docs/protocol.md. Never throws.
void save_flight_record(const FlightRecordHeader& header, std::string_view json) noexcept;

}  // namespace lockstep::comm
