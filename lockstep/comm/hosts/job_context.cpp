// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/job_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/hosts/left_worlds.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::comm {

JobContext::JobContext(std::shared_ptr<HostSession> session, std::shared_ptr<HostsContext> hosts)
    : RankContext({session, &session->page().activity(session->rank())}),
      session_(std::move(session)),
      hosts_(std::move(hosts)) {}

void JobContext::expect_preemption() { session_->page().expect_preemption(session_->rank()); }

void JobContext::agree_on_preemption() { session_->page().agree_on_preemption(); }

std::shared_ptr<const Activity> JobContext::activity_of(int rank) const {
  if (session_->page().pid(rank) == 0) return nullptr;
  return {session_, &session_->page().activity(rank)};
}

bool JobContext::knows_of_loss() const {
  const auto failure = session_->page().failure();
  return failure && !failure->fault && session_->page().activity(failure->rank).aborted_at == 0;
}

bool JobContext::has_lost(int rank) const {
  const JobControlBlock& page = session_->page();
  return page.pid(rank) != 0 ? page.lost(rank) : hosts_ && hosts_->lost->contains(rank);
}

void JobContext::finish() {
  if (hosts_) hosts_->connections->finish();
  session_->finish();
}

void JobContext::leave() {
  if (auto* const recorder = TimelineRecorder::current()) recorder->note_clock();
  if (hosts_) hosts_->connections->finish();
  session_->leave();
  if (hosts_) keep_for_others(hosts_);
}

void JobContext::abandon() {
  session_->abandon();
  if (hosts_) hosts_->connections->tell_failure(reason_for_leaving());
}

void JobContext::report_exit() {
  if (!hosts_) return;
  const Failure failure = reason_for_leaving();
  const bool is_explained = failure.rank != session_->rank() || !failure.what.empty();
  if (is_explained) hosts_->connections->tell_failure(failure);
}

// The job's failure, the group's break, or how this rank left.
Failure JobContext::reason_for_leaving() const {
  const JobControlBlock& page = session_->page();
  const int rank = session_->rank();
  const Failure end = page.examine(rank);
  const auto first = page.failure();
  const Failure failure = first ? *first : page.cause_of(rank, end);
  return failure.rank < 0 ? end : failure;  // The rank that caused the break is unknown.
}

void JobContext::report_break(Failure failure) {
  failure.ranks = ranks_within(std::move(failure.ranks), session_->size());
  failure.rank = failure.ranks.empty() ? -1 : failure.ranks.front();
  if (!failure.ranks.empty()) {
    identify(failure);
    if (failure.fault == Fault::timeout && failure.detected_by == session_->rank())
      add_last_seen(failure);
    // A rank may have left because another one had.
    if (failure.left && session_->page().pid(failure.rank) != 0)
      failure = session_->page().cause_of(failure.rank, failure);
  }
  session_->note_break(std::move(failure));
}

void JobContext::identify(Failure& failure) const {
  const JobControlBlock& page = session_->page();
  if (page.pid(failure.rank) != 0) {
    failure.host = host_name();
    failure.pid = page.pid(failure.rank);
    note_latest(failure, page.activity(failure.rank));
  } else if (const RemoteRank* who = remote(failure.rank)) {
    failure.host = who->host;
    failure.pid = who->pid;
  }
}

void JobContext::add_last_seen(Failure& failure) const {
  constexpr std::size_t most_described = 4;  // Ranks.
  std::string seen;
  const std::size_t described = std::min(failure.ranks.size(), most_described);
  for (std::size_t i = 0; i < described; ++i)
    seen += fmt::format("{}{}", i == 0 ? "" : "; ", last_seen(failure.ranks[i]));
  if (described < failure.ranks.size())
    seen += fmt::format("; and {} more", failure.ranks.size() - described);
  failure.what += "; last seen: " + seen;
}

std::string JobContext::last_seen(int rank) const {
  const JobControlBlock& page = session_->page();
  if (page.pid(rank) == 0) {
    const RemoteRank* who = remote(rank);
    if (who == nullptr) return fmt::format("rank {}, which has not joined", rank);
    return fmt::format("rank {} (pid {} on {})", rank, who->pid, who->host);
  }
  const std::string who = fmt::format("rank {} (pid {} on {})", rank, page.pid(rank), host_name());
  if (page.phase(rank) != JobControlBlock::Phase::alive) return who + ", which has left its group";
  const char state = page.process_state(rank);
  return fmt::format("{}, {}{}", who, describe(page.activity(rank)),
                     state == 'T' || state == 't' ? ", STOPPED" : "");
}

const RemoteRank* JobContext::remote(int rank) const {
  return hosts_ ? &hosts_->ranks[static_cast<std::size_t>(rank)] : nullptr;
}

}  // namespace lockstep::comm
