// The file in which a rank records its spans: a header and two ring buffers, which overwrite their
// oldest spans. Readers must be of the same version and processor architecture.
//
// The rank maps the file, so a span needs no system call, and a killed rank leaves its spans.

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

struct ClockPair {
  Ticks ticks = 0;
  std::int64_t steady_ns = 0;
};

// This rank's steady clock plus `offset_ns` is that of rank 0, within `error_ns`.
struct ClockOffset {
  std::int64_t at_steady_ns = 0;
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
};

struct PhaseSpan {
  // From 1, written last. 0: unused, or being overwritten.
  std::atomic<std::uint64_t> number;
  Ticks begin;
  Ticks end;
  StepPhase phase;
};

struct CollectiveSpan {
  std::atomic<std::uint64_t> number;  // As above.
  Ticks begin;
  Ticks waited_until;  // When all ranks had joined.
  Ticks end;
  std::uint64_t sequence;
  std::uint64_t bytes;
  GroupName group;
  std::int32_t last;     // Last to join, numbered in the job; -1 for none.
  std::int32_t fault;    // -1 on success.
  std::uint32_t thread;  // 0 for the training loop's, else the kernel's id.
  Operation operation;
};

struct TimelineHeader {
  static constexpr std::array<char, 16> right_magic{"lockstep-span-3"};
  static constexpr std::size_t most_offsets = 16;

  std::array<char, 16> magic;
  std::uint64_t job;
  std::int32_t rank;
  std::int32_t world_size;
  std::int32_t attempt;
  std::int32_t pid;
  char host[64];
  std::uint64_t phase_capacity;
  std::uint64_t collective_capacity;
  std::atomic<std::uint64_t> phases;
  std::atomic<std::uint64_t> collectives;

  double ns_per_tick;  // Measured at the start.
  std::int64_t wall_minus_steady_ns;
  ClockPair first;
  std::array<ClockPair, 2> later;  // Written alternately.
  std::atomic<std::uint32_t> laters;

  std::array<ClockOffset, most_offsets> offsets;
  std::atomic<std::uint32_t> offset_count;
};

// Byte offset of the first ring.
inline constexpr std::size_t spans_offset = 4096;

static_assert(std::is_trivially_destructible_v<TimelineHeader> &&
              sizeof(TimelineHeader) <= spans_offset);

inline std::size_t timeline_bytes(std::uint64_t phases, std::uint64_t collectives) {
  return spans_offset + phases * sizeof(PhaseSpan) + collectives * sizeof(CollectiveSpan);
}

}  // namespace lockstep::job
