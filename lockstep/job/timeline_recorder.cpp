// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/timeline_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/time.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/job/read_together.h"
#include "lockstep/job/timeline_file.h"

namespace lockstep {
namespace {

using job::CollectiveSpan;
using job::PhaseSpan;
using job::TimelineHeader;

// Spans between two clock readings.
constexpr std::uint64_t clock_interval = 256;

job::ClockPair clocks_now() {
  const Moment now = moment_now();
  return {now.ticks, steady_ns(now.time)};
}

std::int64_t wall_minus_steady() {
  const auto steady_now = [] { return steady_ns(Clock::now()); };
  const auto [steady, wall] = job::read_together(steady_now, wall_time_ns);
  return wall - steady;
}

// Allocates the whole file on the disk, so that later stores cannot fail. Unlinks an older file,
// which another process may have mapped.
std::byte* map_new_file(const std::filesystem::path& file, std::size_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) throw_errno("making folder " + file.parent_path().string(), error.value());
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) throw_errno("removing " + file.string());
  const FileDescriptor fd(
      ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) throw_errno("making " + file.string());
  const IgnoreSignals ignore{SIGXFSZ};
  if (const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes))) {
    ::unlink(file.c_str());
    throw_errno(fmt::format("reserving {} bytes of {}", bytes, file.string()), failed);
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    const int failed = errno;
    ::unlink(file.c_str());
    throw_errno("mapping " + file.string(), failed);
  }
  return static_cast<std::byte*>(memory);
}

std::uint32_t number_of_this_thread() {
  thread_local const auto number = static_cast<std::uint32_t>(::gettid());
  return number;
}

PhaseSpan* phases_in(std::byte* memory) {
  return reinterpret_cast<PhaseSpan*>(memory + job::spans_offset);
}

CollectiveSpan* collectives_in(std::byte* memory, std::uint64_t phases) {
  return reinterpret_cast<CollectiveSpan*>(memory + job::spans_offset + phases * sizeof(PhaseSpan));
}

// Prevents reordering: a process killed while it writes a span leaves none.
template <class Span>
void mark_as_changing(Span& span) {
  span.number.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

std::atomic<TimelineRecorder*> TimelineRecorder::current_{nullptr};

std::string TimelineRecorder::spans_name(int attempt, int rank) {
  return fmt::format("attempt-{}.rank-{}.spans", attempt, rank);
}

std::string TimelineRecorder::operators_name(int attempt, int rank) {
  return fmt::format("attempt-{}.rank-{}.operators.json", attempt, rank);
}

TimelineRecorder& TimelineRecorder::start(const Options& options) {
  check(current_ == nullptr, "this process records a timeline already");
  auto* const recorder = new TimelineRecorder(options);  // Never destroyed: threads may record
                                                         // until exit.
  ::pthread_atfork(nullptr, nullptr, [] { current_ = nullptr; });
  current_ = recorder;
  return *recorder;
}

TimelineRecorder::TimelineRecorder(const Options& options)
    : file_(options.folder / spans_name(options.attempt, options.rank)),
      bytes_(job::timeline_bytes(options.most_phases, options.most_collectives)),
      memory_(map_new_file(file_, bytes_)) {
  std::error_code ignored;
  std::filesystem::remove(options.folder / operators_name(options.attempt, options.rank), ignored);
  TimelineHeader& head = *new (memory_) TimelineHeader{};
  head.job = options.job;
  head.rank = options.rank;
  head.world_size = options.world_size;
  head.attempt = options.attempt;
  head.pid = ::getpid();
  copy_text(head.host, options.host);
  head.phase_capacity = options.most_phases;
  head.collective_capacity = options.most_collectives;
  constexpr Ticks many = Ticks{1} << 30;
  head.ns_per_tick = static_cast<double>(time_in(many).count()) / static_cast<double>(many);
  head.wall_minus_steady_ns = wall_minus_steady();
  head.first = clocks_now();
  head.magic = TimelineHeader::right_magic;
}

TimelineRecorder::~TimelineRecorder() { ::munmap(memory_, bytes_); }

TimelineHeader& TimelineRecorder::header() const {
  return *reinterpret_cast<TimelineHeader*>(memory_);
}

void TimelineRecorder::phase(StepPhase phase, Ticks begin, Ticks end) {
  TimelineHeader& head = header();
  const std::uint64_t number = head.phases.fetch_add(1, std::memory_order_relaxed);
  PhaseSpan& span = phases_in(memory_)[number % head.phase_capacity];
  mark_as_changing(span);
  span.begin = begin;
  span.end = end;
  span.phase = phase;
  span.number.store(number + 1, std::memory_order_release);
  if (number % clock_interval == clock_interval - 1) note_clock();
}

void TimelineRecorder::collective(const Collective& collective) {
  TimelineHeader& head = header();
  const std::uint64_t number = head.collectives.fetch_add(1, std::memory_order_relaxed);
  CollectiveSpan& span =
      collectives_in(memory_, head.phase_capacity)[number % head.collective_capacity];
  mark_as_changing(span);
  span.begin = collective.begin;
  span.waited_until = collective.waited_until;
  span.end = collective.end;
  span.sequence = collective.sequence;
  span.bytes = collective.bytes;
  span.group = collective.group;
  span.last = collective.last;
  span.fault = collective.fault ? static_cast<std::int32_t>(*collective.fault) : -1;
  span.thread = collective.is_of_loop ? 0 : number_of_this_thread();
  span.operation = collective.operation;
  span.number.store(number + 1, std::memory_order_release);
  if (number % clock_interval == clock_interval - 1) note_clock();
}

void TimelineRecorder::add_offset(std::chrono::nanoseconds offset, std::chrono::nanoseconds error) {
  const std::lock_guard lock(clock_mutex_);
  TimelineHeader& head = header();
  const std::uint32_t count = head.offset_count.load(std::memory_order_relaxed);
  const std::size_t place = std::min<std::size_t>(count, TimelineHeader::most_offsets - 1);
  head.offsets[place] = {steady_ns(Clock::now()), offset.count(), error.count()};
  head.offset_count.store(static_cast<std::uint32_t>(place) + 1, std::memory_order_release);
}

std::filesystem::path TimelineRecorder::operators_file() const {
  return file_.parent_path() / operators_name(header().attempt, header().rank);
}

std::uint64_t TimelineRecorder::stamp() const { return header().first.ticks; }

// A process killed meanwhile leaves the previous pair. The lock's holder records the same.
void TimelineRecorder::note_clock() {
  const std::unique_lock lock(clock_mutex_, std::try_to_lock);
  if (!lock) return;
  TimelineHeader& head = header();
  const std::uint32_t count = head.laters.load(std::memory_order_relaxed);
  head.later[count % head.later.size()] = clocks_now();
  head.laters.store(count + 1, std::memory_order_release);
}

}  // namespace lockstep
