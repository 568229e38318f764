// Handles incoming frames, and connections that end, on the lines' thread.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/comm/lines/lines_loop.h"

namespace lockstep {
namespace {

using Kind = LineFrame::Kind;

constexpr std::chrono::milliseconds grace{200};  // Time for a rank of its host to report the cause.
constexpr std::size_t max_unopened = 1024;

}  // namespace

void Lines::Loop::hear(int rank, const std::shared_ptr<Line>& line, const LineFrame& frame) {
  if (frame.kind == Kind::failure && is_up(rank)) return hear_failure(rank, frame);
  std::shared_ptr<GroupLines> to;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.up || frame.kind == Kind::rank) return hear_first(rank, peer, frame);
    if (frame.kind == Kind::finished) {
      peer.finished = true;
      return;
    }
    if (!groups_.contains(frame.group)) {
      if (was_opened(frame.group)) return;
      if (++unopened_ > max_unopened)
        throw Error(Fault::corrupt, "it speaks of too many groups that are not here");
    }
    to = group(frame.group);
  }
  to->take(rank, line, frame);
}

void Lines::Loop::hear_first(int rank, Peer& peer, const LineFrame& frame) {
  if (peer.up || frame.kind != Kind::rank)
    throw Error(Fault::corrupt, "a frame that comes at the wrong time");
  if (frame.number != static_cast<std::uint64_t>(rank))
    throw Error(Fault::corrupt, fmt::format("it is rank {}", frame.number));
  peer.up = true;
  peer.why.clear();
  changed_.notify_all();
}

void Lines::Loop::hear_failure(int rank, const LineFrame& frame) {
  const Failure failure = decode_failure(frame.bytes);
  const int size = options_.member.world_size;
  if (failure.rank < 0 || failure.rank >= size)
    throw Error(Fault::corrupt, fmt::format("a failure of rank {}", failure.rank));
  if (std::any_of(failure.ranks.begin(), failure.ranks.end(),
                  [&](int blamed) { return blamed < 0 || blamed >= size; }))
    throw Error(Fault::corrupt, "a failure of ranks that the job does not have");
  {
    const std::lock_guard lock(mutex_);
    Peer& lost = peers_[static_cast<std::size_t>(failure.rank)];
    if (failure.rank == options_.member.rank || lost.reported) return;
    lost.reported = true;
    lost.report_at = no_deadline;
  }
  log(LogLevel::debug, fmt::format("rank {} says: {}", rank, describe(failure)));
  options_.on_failure(failure);
}

void Lines::Loop::end(int rank, const std::shared_ptr<Line>& line, const std::string& why) {
  const std::lock_guard lock(mutex_);
  line->close();
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.line != line) return;
  peer.why = why;
  if (!peer.up) {
    peer.line = nullptr;  // Another connection may come.
  } else {
    peer.ended = true;
    if (!peer.finished && !peer.reported) peer.report_at = in(grace);
  }
  changed_.notify_all();
}

void Lines::Loop::look_for_silence(Clock::time_point now) {
  if (now - looked_ < look_interval) return;
  looked_ = now;
  for (const auto& [rank, line] : open_lines())
    if (line->is_unanswered()) end(rank, line, std::string(Line::no_answer));
}

void Lines::Loop::report(Clock::time_point now) {
  std::vector<Failure> failures;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& peer = peers_[rank];
      if (now < peer.report_at || !peer.remote) continue;
      peer.report_at = no_deadline;
      if (finished_) continue;
      peer.reported = true;
      failures.push_back(failure_of(static_cast<int>(rank)));
    }
  }
  for (const Failure& failure : failures) options_.on_failure(failure);
}

Failure Lines::Loop::failure_of(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return {.rank = rank,
          .host = peer.remote->host,
          .pid = peer.remote->pid,
          .connection = peer.why,
          .detected_by = options_.member.rank};
}

}  // namespace lockstep
