// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/job_timeline.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/random_number.h"
#include "lockstep/base/text_file.h"
#include "lockstep/base/time.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/timeline/rank_timeline.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

constexpr int round_trips = 32;
constexpr std::int64_t clock_tag = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t file_tag = clock_tag - 1;

Buffer buffer_of(std::int64_t& number) { return {&number, 1, DType::int64}; }

int leader_of(int host, const std::vector<int>& host_of_rank) {
  return static_cast<int>(std::ranges::find(host_of_rank, host) - host_of_rank.begin());
}

// --- One clock ----------------------------------------------------------------------------------

void answer_with_clock(const ProcessGroup& world, int peer) {
  for (int i = 0; i < round_trips; ++i) {
    std::int64_t time = 0;
    world.recv(buffer_of(time), peer, clock_tag);
    time = steady_ns(Clock::now());
    world.send(buffer_of(time), peer, clock_tag);
  }
}

// Bounds of rank 0's clock minus this one's, in nanoseconds.
struct ClockBounds {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

// All answers together give tighter bounds than the fastest.
ClockBounds ask_for_clock(const ProcessGroup& world) {
  ClockBounds bounds{std::numeric_limits<std::int64_t>::min(),
                     std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < round_trips; ++i) {
    std::int64_t theirs = 0;
    const std::int64_t begin = steady_ns(Clock::now());
    world.send(buffer_of(theirs), 0, clock_tag);
    world.recv(buffer_of(theirs), 0, clock_tag);
    bounds = {std::max(bounds.low, theirs - steady_ns(Clock::now())),
              std::min(bounds.high, theirs - begin)};
  }
  return bounds;
}

void align_clocks(const ProcessGroup& world, const std::vector<int>& host_of_rank) {
  const int hosts = 1 + std::ranges::max(host_of_rank);
  if (hosts == 1) return;
  const int leader = leader_of(host_of_rank[static_cast<std::size_t>(world.rank())], host_of_rank);
  ClockBounds own;
  if (world.rank() == 0)
    for (int host = 1; host < hosts; ++host)
      answer_with_clock(world, leader_of(host, host_of_rank));
  else if (world.rank() == leader)
    own = ask_for_clock(world);
  const auto [low, high] = all_gather_value(own, world)[static_cast<std::size_t>(leader)];
  // A clock that is being adjusted may make the bounds cross.
  const std::int64_t error = (std::abs(high - low) + 1) / 2;
  TimelineRecorder::current()->add_offset(std::chrono::nanoseconds(std::midpoint(low, high)),
                                          std::chrono::nanoseconds(error));
}

// --- One host for all files ---------------------------------------------------------------------

void send_text(const ProcessGroup& world, std::string text) {
  auto size = static_cast<std::int64_t>(text.size());
  world.send(buffer_of(size), 0, file_tag);
  if (size > 0) world.send({text.data(), text.size(), DType::uint8}, 0, file_tag);
}

std::string receive_text(const ProcessGroup& world, int peer) {
  std::int64_t size = 0;
  world.recv(buffer_of(size), peer, file_tag);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0) world.recv({text.data(), text.size(), DType::uint8}, peer, file_tag);
  return text;
}

std::string content_of(const fs::path& file) {
  return fs::exists(file) ? read_file(file.string()) : "";
}

void write_unless_empty(const fs::path& file, const std::string& content) {
  if (content.empty()) return;
  AtomicFile to(file, content.size());
  to.write(std::as_bytes(std::span(content)));
  to.commit_unsynced();
}

bool is_file_of(const fs::path& file, std::uint64_t stamp) {
  try {
    return stamp_of_rank_timeline(file) == stamp;
  } catch (const Error&) {
    return false;
  }
}

// 'x' for ranks whose files rank 0 does not see. The same on all ranks.
std::string missing_at_rank_0(const ProcessGroup& world, int attempt, const fs::path& folder) {
  const auto stamps = all_gather_value(TimelineRecorder::current()->stamp(), world);
  std::string missing(stamps.size(), '-');
  for (std::size_t rank = 0; rank < stamps.size(); ++rank) {
    const auto name = TimelineRecorder::spans_name(attempt, static_cast<int>(rank));
    if (world.rank() == 0 && !is_file_of(folder / name, stamps[rank])) missing[rank] = 'x';
  }
  return broadcast_bytes(missing, world);
}

void bring_files_to_rank_0(const ProcessGroup& world, int attempt) {
  const TimelineRecorder& recorder = *TimelineRecorder::current();
  const fs::path folder = recorder.file().parent_path();
  const std::string missing = missing_at_rank_0(world, attempt, folder);
  for (int rank = 1; rank < world.size(); ++rank) {
    if (missing[static_cast<std::size_t>(rank)] != 'x') continue;
    const fs::path spans = folder / TimelineRecorder::spans_name(attempt, rank);
    const fs::path operators = folder / TimelineRecorder::operators_name(attempt, rank);
    if (world.rank() == 0) {
      write_unless_empty(spans, receive_text(world, rank));
      write_unless_empty(operators, receive_text(world, rank));
    } else if (world.rank() == rank) {
      send_text(world, packed_rank_timeline(read_file(spans.string())));
      send_text(world, content_of(operators));
      fs::remove(spans);
      fs::remove(operators);
    }
  }
}

// Called before `world` is destroyed.
void end_timeline(const ProcessGroup& world, int attempt, const std::vector<int>& host_of_rank) {
  try {
    align_clocks(world, host_of_rank);
    TimelineRecorder::current()->note_clock();
    if (1 + std::ranges::max(host_of_rank) > 1) bring_files_to_rank_0(world, attempt);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "the timeline is not complete: " + std::string(error.what()));
  }
}

// `lockstep run` gives each job an id, which a restart keeps. Other launchers may reuse ids.
std::uint64_t number_of_job(const LaunchEnvironment& who) {
  if (who.agent_fd) return hash_of_elements(who.job_id);
  return random_number();
}

}  // namespace

void record_timeline(const ProcessGroup& world, const LaunchEnvironment& who) {
  const char* const folder = read_variable(TimelineRecorder::variable);
  if (folder == nullptr) return;
  // Shown by a mismatch or timeout if other ranks run without a timeline.
  const std::uint64_t job = broadcast_value(
      number_of_job(who), world, 0,
      {.label = "timeline: LOCKSTEP_TIMELINE_DIR is to be set on all ranks or on none"});
  if (TimelineRecorder::current() == nullptr)
    TimelineRecorder::start({.folder = folder,
                             .job = job,
                             .rank = world.rank(),
                             .world_size = world.size(),
                             .attempt = who.attempt,
                             .host = host_name()});
  const std::vector<int> host_of_rank = host_of_ranks(world);
  align_clocks(world, host_of_rank);
  static std::shared_ptr<const std::function<void()>> last_act;  // Lives as long as the group.
  const std::weak_ptr<ProcessGroup::State> weak = GroupAccess::state_of(world).weak_from_this();
  last_act =
      std::make_shared<const std::function<void()>>([weak, attempt = who.attempt, host_of_rank] {
        if (auto state = weak.lock())
          end_timeline(GroupAccess::of(std::move(state)), attempt, host_of_rank);
      });
  before_end(world, last_act);
}

}  // namespace lockstep::comm
