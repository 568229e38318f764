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

#include "lockstep/comm/signature.h"
#include "lockstep/comm/time.h"

namespace lockstep {

class FlightRecorder {
 public:
  static constexpr std::size_t capacity = 256;

  enum class Phase : std::uint8_t { entered, completed, failed };

  // `bytes` is what this rank gives or gets, whichever is more.
  // Its result is what leave() wants.
  std::uint64_t enter(const Signature& signature, std::uint64_t sequence, std::size_t bytes,
                      Clock::time_point now);
  void leave(std::uint64_t number, Phase phase, Clock::time_point now);

  // A JSON array, the oldest first. Times are microseconds of the steady clock.
  std::string json() const;

 private:
  struct Entry {
    std::atomic<std::uint64_t> sequence{0};  // 0 for an empty entry.
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> tag{0};
    std::atomic<std::int64_t> entered{0};
    std::atomic<std::int64_t> left{0};
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
// and process that nobody else may read; without that variable, to the log at level info. Never
// throws: it is called on the way to another error.
void save_flight_record(const FlightRecordHeader& header, std::string_view json) noexcept;

}  // namespace lockstep
