// The last operations of a group on this rank: what was called, when, and how far it came.
//
// Thread safety: one thread records at a time; json() may be called from any other meanwhile.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/ticks.h"
#include "lockstep/comm/core/signature.h"

namespace lockstep {

class FlightRecorder {
 public:
  static constexpr std::size_t capacity = 256;

  enum class Phase : std::uint8_t { entered, completed, failed };

  // The result is what leave() wants.
  std::uint64_t enter(const Signature& signature, std::uint64_t sequence, Ticks now) {
    constexpr auto relaxed = std::memory_order_relaxed;
    const std::uint64_t number = recorded_.load(relaxed);
    Entry& entry = entries_[number % capacity];
    entry.sequence.store(sequence, relaxed);
    entry.count.store(signature.count, relaxed);
    entry.tag.store(signature.label, relaxed);
    entry.entered.store(now, relaxed);
    entry.left.store(0, relaxed);
    entry.root.store(signature.root, relaxed);
    entry.operation.store(signature.operation, relaxed);
    entry.dtype.store(signature.dtype, relaxed);
    entry.op.store(signature.op, relaxed);
    entry.phase.store(Phase::entered, relaxed);
    recorded_.store(number + 1, std::memory_order_release);
    return number;
  }

  void leave(std::uint64_t number, Phase phase, Ticks now) {
    if (recorded_.load(std::memory_order_relaxed) - number > capacity) return;  // Overwritten.
    Entry& entry = entries_[number % capacity];
    entry.left.store(now, std::memory_order_relaxed);
    entry.phase.store(phase, std::memory_order_relaxed);
  }

  // A JSON array, the oldest first. Times are microseconds of the steady clock.
  std::string json() const;

 private:
  struct alignas(64) Entry {  // One cache line.
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> tag{0};  // Of a collective, the hash of its label.
    std::atomic<Ticks> entered{0};
    std::atomic<Ticks> left{0};  // 0 while under way.
    std::atomic<std::int32_t> root{0};
    std::atomic<Operation> operation{};
    std::atomic<DType> dtype{};
    std::atomic<ReduceOp> op{};
    std::atomic<Phase> phase{};
  };

  std::array<Entry, capacity> entries_;
  std::atomic<std::uint64_t> recorded_{0};  // Since the begin; the latest is number recorded_ - 1.
};

// Who wrote a flight record, and why.
struct FlightRecordHeader {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string backend;
  std::string error = {};  // Empty when it was asked for.
};

// The whole record of one rank's group as a JSON object; docs/protocol.md has its members.
std::string flight_record(const FlightRecordHeader& header, const FlightRecorder& collectives,
                          const FlightRecorder& messages);

// Writes `json` into the folder that LOCKSTEP_FLIGHT_RECORD names, as a file of this group, rank
// and process that nobody else may read; without that variable, or when the file cannot be written,
// to the log at level info. Never throws: it is called on the way to another error.
void save_flight_record(const FlightRecordHeader& header, std::string_view json) noexcept;

}  // namespace lockstep
