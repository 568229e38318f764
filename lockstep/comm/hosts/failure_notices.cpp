// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/failure_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

FailureNotices::FailureNotices(std::shared_ptr<HostSession> session, Connections& connections,
                               std::vector<bool> is_here)
    : session_(std::move(session)),
      connections_(connections),
      is_here_(std::move(is_here)),
      thread_(start_thread(&FailureNotices::watch, this)) {}

FailureNotices::~FailureNotices() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool FailureNotices::is_here(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < is_here_.size() && is_here_[index];
}

void FailureNotices::tell_what_is_known() const {
  if (const auto failure = session_->page().failure()) connections_.tell_failure(*failure);
}

void FailureNotices::watch() {
  constexpr std::chrono::milliseconds slice{20};
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, slice, [this] { return ending_; })) {
    try {
      session_->throw_if_peer_lost("watching this host's ranks");
    } catch (const Error& error) {
      const auto& failure = error.failure();
      if (failure && is_here(failure->rank)) connections_.tell_failure(*failure);
      return;  // Only the first failure of a job counts.
    }
  }
}

namespace {

constexpr std::size_t most_described = 4;  // Ranks.

const RemoteRank* remote(const HostsContext* hosts, int rank) {
  return hosts == nullptr ? nullptr : &hosts->ranks[static_cast<std::size_t>(rank)];
}

std::string last_seen(const JobControlBlock& page, const HostsContext* hosts, int rank) {
  if (page.pid(rank) == 0) {
    const RemoteRank* who = remote(hosts, rank);
    if (who == nullptr) return fmt::format("rank {}, which has not joined", rank);
    return fmt::format("rank {} (pid {} on {})", rank, who->pid, who->host);
  }
  const std::string who = fmt::format("rank {} (pid {} on {})", rank, page.pid(rank), host_name());
  if (page.phase(rank) != JobControlBlock::Phase::alive) return who + ", which has left its group";
  const char state = page.process_state(rank);
  return fmt::format("{}, {}{}", who, describe(page.activity(rank)),
                     state == 'T' || state == 't' ? ", STOPPED" : "");
}

// Describes the first rank that caused the failure.
void identify(Failure& failure, const JobControlBlock& page, const HostsContext* hosts) {
  if (page.pid(failure.rank) != 0) {
    failure.host = host_name();
    failure.pid = page.pid(failure.rank);
    note_latest(failure, page.activity(failure.rank));
  } else if (const RemoteRank* who = remote(hosts, failure.rank)) {
    failure.host = who->host;
    failure.pid = who->pid;
  }
}

void say_where_they_are(Failure& failure, const JobControlBlock& page, const HostsContext* hosts) {
  std::string seen;
  const std::size_t described = std::min(failure.ranks.size(), most_described);
  for (std::size_t i = 0; i < described; ++i)
    seen += fmt::format("{}{}", i == 0 ? "" : "; ", last_seen(page, hosts, failure.ranks[i]));
  if (described < failure.ranks.size())
    seen += fmt::format("; and {} more", failure.ranks.size() - described);
  failure.what += "; last seen: " + seen;
}

}  // namespace

void report_break(HostSession& session, const HostsContext* hosts, Failure failure) {
  failure.ranks = ranks_within(std::move(failure.ranks), session.size());
  failure.rank = failure.ranks.empty() ? -1 : failure.ranks.front();
  if (!failure.ranks.empty()) {
    identify(failure, session.page(), hosts);
    if (failure.fault == Fault::timeout && failure.detected_by == session.rank())
      say_where_they_are(failure, session.page(), hosts);
    // A rank may have left because another one had.
    if (failure.left && session.page().pid(failure.rank) != 0)
      failure = session.page().cause_of(failure.rank, failure);
  }
  session.note_break(std::move(failure));
}

Failure reason_for_leaving(HostSession& session) {
  const JobControlBlock& page = session.page();
  const int rank = session.rank();
  const Failure end = page.examine(rank);
  const auto first = page.failure();
  const Failure failure = first ? *first : page.cause_of(rank, end);
  return failure.rank < 0 ? end : failure;  // The rank that caused the break is unknown.
}

}  // namespace lockstep::comm
