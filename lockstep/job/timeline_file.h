// The file in which a rank records its spans: a header, then two rings. Only programs of the same
// version on the same kind of processor read it.
//
// The rank has it mapped. So a killed rank leaves all that it had recorded, and a span costs no
// system call. When a ring is full, the oldest spans are overwritten.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "lockstep/job/activity.h"
#include "lockstep/job/detail/operation.h"
#include "lockstep/job/step_times.h"

namespace lockstep::job {

// One moment on both clocks.
struct ClockPair {
  Ticks ticks = 0;
  std::int64_t steady_ns = 0;
};

// This rank's steady clock plus `offset_ns` is that of rank 0, give or take `error_ns`.
struct ClockOffset {
  std::int64_t at_steady_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
};

struct PhaseSpan {
  std::atomic<std::uint64_t> number;  // From 1, written last; other numbers are being overwritten.
  Ticks begin;
  Ticks end;
  StepPhase phase;
};

struct CollectiveSpan {
  std::atomic<std::uint64_t> number;  // As above.
  Ticks begin;
  Ticks waited_until;  // Until all ranks had come.
  Ticks end;
  std::uint64_t sequence;  // Number in its group.
  std::uint64_t bytes;
  GroupName group;
  std::int32_t last;     // For which rank of the job this one has waited; -1 for none.
  std::int32_t fault;    // The Fault that ended it; -1 if it was completed.
  std::uint32_t thread;  // 0 for the training loop's, else the number that the kernel gave it.
  Operation operation;
};

struct TimelineHeader {
  static constexpr std::array<char, 16> right_magic{"lockstep-span-3"};
  static constexpr std::size_t most_offsets = 16;

  std::array<char, 16> magic;
  std::uint64_t job;  // Equal for all ranks of a job.
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t attempt;
  std::int32_t pid;
  char host[64];
  std::uint64_t phase_capacity;
  std::uint64_t collective_capacity;
  std::atomic<std::uint64_t> phases;  // Ever recorded.
  std::atomic<std::uint64_t> collectives;

  double ns_per_tick;  // As measured at the start.
  std::int64_t wall_minus_steady_ns;
  ClockPair first;
  std::array<ClockPair, 2> later;  // Written in turn.
  std::atomic<std::uint32_t> laters;

  std::array<ClockOffset, most_offsets> offsets;
  std::atomic<std::uint32_t> offset_count;
};

// Of the first ring in the file, after the header.
inline constexpr std::size_t spans_offset = 4096;

static_assert(std::is_trivially_destructible_v<TimelineHeader> &&
              sizeof(TimelineHeader) <= spans_offset);

inline std::size_t timeline_bytes(std::uint64_t phases, std::uint64_t collectives) {
  return spans_offset + phases * sizeof(PhaseSpan) + collectives * sizeof(CollectiveSpan);
}

}  // namespace lockstep::job
