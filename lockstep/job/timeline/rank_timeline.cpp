// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/timeline/rank_timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text_file.h"
#include "lockstep/job/timeline_file.h"

namespace lockstep {
namespace {

using job::ClockOffset;
using job::ClockPair;
using job::CollectiveSpan;
using job::PhaseSpan;
using job::TimelineHeader;

class RankClock {
 public:
  explicit RankClock(const TimelineHeader& head)
      : first_(head.first),
        ns_per_tick_(head.ns_per_tick),
        offsets_(head.offsets.begin(), head.offsets.begin() + head.offset_count) {
    constexpr std::int64_t long_enough = 5'000'000;
    if (head.laters == 0) return;
    const ClockPair& later = head.later[(head.laters - 1) % head.later.size()];
    if (later.steady_ns - first_.steady_ns > long_enough)
      ns_per_tick_ = static_cast<double>(later.steady_ns - first_.steady_ns) /
                     static_cast<double>(later.ticks - first_.ticks);
  }

  std::int64_t operator()(Ticks ticks) const {
    const auto since = static_cast<std::int64_t>(ticks - first_.ticks);
    const auto steady =
        first_.steady_ns + static_cast<std::int64_t>(static_cast<double>(since) * ns_per_tick_);
    return steady + offset_at(steady);
  }

  std::int64_t offset_at(std::int64_t steady) const {
    if (offsets_.empty()) return 0;
    const auto next = std::ranges::upper_bound(offsets_, steady, {}, &ClockOffset::at_steady_ns);
    if (next == offsets_.begin()) return next->offset_ns;
    if (next == offsets_.end()) return std::prev(next)->offset_ns;
    const ClockOffset& before = *std::prev(next);
    const double share = static_cast<double>(steady - before.at_steady_ns) /
                         static_cast<double>(next->at_steady_ns - before.at_steady_ns);
    return before.offset_ns + static_cast<std::int64_t>(
                                  share * static_cast<double>(next->offset_ns - before.offset_ns));
  }

  int comparisons() const { return static_cast<int>(offsets_.size()); }

  std::int64_t error() const {
    return offsets_.empty() ? 0 : std::ranges::max(offsets_, {}, &ClockOffset::error_ns).error_ns;
  }

 private:
  const ClockPair first_;
  double ns_per_tick_;
  const std::vector<ClockOffset> offsets_;
};

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  throw Error(Fault::corrupt, std::string(name) + ": " + std::string(why));
}

// Checks that the rings of a file of `size` bytes are complete. `bytes` may be a prefix.
const TimelineHeader& header_of(std::string_view bytes, std::uint64_t size, std::string_view name) {
  if (bytes.size() < job::spans_offset) refuse(name, "it is too short for a rank's spans");
  const auto& head = *reinterpret_cast<const TimelineHeader*>(bytes.data());
  if (head.magic != TimelineHeader::right_magic)
    refuse(name, "it has no spans of a rank, or those of another version of Lockstep");
  const bool fits = head.phase_capacity <= size && head.collective_capacity <= size;
  if (!fits || size < job::timeline_bytes(head.phase_capacity, head.collective_capacity) ||
      head.offset_count > TimelineHeader::most_offsets)
    refuse(name, "it is damaged");
  return head;
}

// Calls act(span) for a ring's complete spans in order. Returns how many were overwritten.
template <class Span, class Act>
std::uint64_t for_each_span(const char* ring, std::uint64_t capacity, std::uint64_t recorded,
                            Act act) {
  const std::uint64_t left_out = recorded - std::min(recorded, capacity);
  for (std::uint64_t number = left_out; number < recorded; ++number) {
    const char* const place = ring + number % capacity * sizeof(Span);
    const auto& span = *reinterpret_cast<const Span*>(place);
    if (span.number.load(std::memory_order_acquire) == number + 1) act(span);
  }
  return left_out;
}

std::optional<Fault> fault_of(const CollectiveSpan& span) {
  return span.fault < 0 ? std::nullopt : std::optional(static_cast<Fault>(span.fault));
}

std::string text_of(const GroupName& group) {
  char text[sizeof group + 1] = {};
  std::memcpy(text, group.data(), sizeof group);
  return text;
}

}  // namespace

std::optional<std::uint64_t> stamp_of_rank_timeline(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  const std::string name = file.string();
  const FileDescriptor fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("opening " + name);
  std::string bytes(job::spans_offset, '\0');
  const ssize_t length = ::pread(fd.get(), bytes.data(), bytes.size(), 0);
  if (length < 0) throw_errno("reading " + name);
  bytes.resize(static_cast<std::size_t>(length));
  return header_of(bytes, std::filesystem::file_size(file), name).first.ticks;
}

RankTimeline read_rank_timeline(const std::filesystem::path& file) {
  const std::string bytes = read_file(file.string());
  const TimelineHeader& head = header_of(bytes, bytes.size(), file.string());
  const RankClock clock(head);
  RankTimeline timeline{.job = head.job, .rank = head.rank, .attempt = head.attempt};
  timeline.host = std::string(head.host, ::strnlen(head.host, sizeof head.host));
  timeline.wall_minus_this_ns = head.wall_minus_steady_ns - clock.offset_at(head.first.steady_ns);
  timeline.clock_comparisons = clock.comparisons();
  timeline.clock_error_ns = clock.error();
  timeline.began_wall_ns = head.first.steady_ns + head.wall_minus_steady_ns;
  const char* const phases = bytes.data() + job::spans_offset;
  timeline.phases_left_out = for_each_span<PhaseSpan>(
      phases, head.phase_capacity, head.phases, [&](const PhaseSpan& span) {
        timeline.phases.push_back({clock(span.begin), clock(span.end), span.phase});
      });
  timeline.collectives_left_out = for_each_span<CollectiveSpan>(
      phases + head.phase_capacity * sizeof(PhaseSpan), head.collective_capacity, head.collectives,
      [&](const CollectiveSpan& span) {
        timeline.collectives.push_back({.begin = clock(span.begin),
                                        .waited_until = clock(span.waited_until),
                                        .end = clock(span.end),
                                        .group = text_of(span.group),
                                        .sequence = span.sequence,
                                        .bytes = span.bytes,
                                        .last = span.last,
                                        .thread = span.thread,
                                        .operation = span.operation,
                                        .fault = fault_of(span)});
      });
  return timeline;
}

std::string packed_rank_timeline(std::string_view file) {
  const TimelineHeader& head = header_of(file, file.size(), "spans of this rank");
  const std::uint64_t phases = std::clamp<std::uint64_t>(head.phases, 1, head.phase_capacity);
  const std::uint64_t collectives =
      std::clamp<std::uint64_t>(head.collectives, 1, head.collective_capacity);
  std::string packed(file.substr(0, job::spans_offset));
  auto& packed_head = *reinterpret_cast<TimelineHeader*>(packed.data());
  packed_head.phase_capacity = phases;
  packed_head.collective_capacity = collectives;
  const std::size_t second = job::spans_offset + head.phase_capacity * sizeof(PhaseSpan);
  packed += file.substr(job::spans_offset, phases * sizeof(PhaseSpan));
  packed += file.substr(second, collectives * sizeof(CollectiveSpan));
  return packed;
}

}  // namespace lockstep
