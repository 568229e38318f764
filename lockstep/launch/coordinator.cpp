// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_names.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::launch {
namespace {

constexpr const char* left_the_job = "this host left the job";

std::string count_of_hosts(int count) {
  return count == 1 ? "1 host" : fmt::format("{} hosts", count);
}

std::string range_of_hosts(int least, int most) {
  return least == most ? count_of_hosts(most) : fmt::format("{} to {} hosts", least, most);
}

double seconds_of(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string cause_of_stop(int exit_code) {
  const std::string signal = signal_of_exit_code(exit_code);
  return signal.empty() ? "its user" : signal;
}

}  // namespace

std::chrono::milliseconds pause_between_states(std::size_t hosts) {
  constexpr std::size_t few_hosts = 64;
  return std::chrono::milliseconds(hosts > few_hosts ? 100 : 0);
}

Coordinator::Coordinator(const Rules& rules, Time now)
    : rules_(rules), backoff_(rules.max_restart_delay), gathering_since_(now), last_arrival_(now) {}

std::optional<std::string> Coordinator::join(Id id, const JoiningNode& node, Time now) {
  if (over()) return "the job has ended";
  const Hosts& hosts = rules_.hosts;
  if (node.least != hosts.least || node.most != hosts.most)
    return fmt::format("host {} expects a job of {}, but the coordinating host expects {}",
                       node.host, range_of_hosts(node.least, node.most),
                       range_of_hosts(hosts.least, hosts.most));
  if (node.node_rank && *node.node_rank >= hosts.most)
    return fmt::format("host {} claims to be node {}, but the job has {}", node.host,
                       *node.node_rank, count_of_hosts(hosts.most));
  for (const auto& [other_id, other] : members_)
    if (node.node_rank && other.said.node_rank == node.node_rank)
      return fmt::format("host {} claims to be node {}, which host {} is already", node.host,
                         *node.node_rank, other.said.host);

  Member& member = members_[id];
  member.said = node;
  member.arrival = arrivals_++;
  if (id == 0) member.said.node_rank = 0;
  last_arrival_ = now;
  if (phase_ == Phase::gathering) start_if_complete(now);
  // Once ranks are done, new hosts do not restart the attempt.
  else if (phase_ == Phase::running && taking_part() < hosts.most && !anyone_is_done_)
    end_ranks({.restart = true}, fmt::format("host {} joined", node.host), std::nullopt, now);
  return std::nullopt;
}

void Coordinator::report(Id id, int attempt, Outcome outcome, int exit_code,
                         const std::optional<Failure>& failure, Time now) {
  const auto found = members_.find(id);
  if (over() || found == members_.end()) return;
  Member& member = found->second;
  const std::string& host = member.said.host;
  if (outcome == Outcome::stopped || (outcome == Outcome::left && id == 0)) {
    const std::string why =
        outcome == Outcome::stopped
            ? fmt::format("stopped by {} on host {}", cause_of_stop(exit_code), host)
            : fmt::format("host {}, which holds the store, left", host);
    return stop(why, {.end = {exit_code, why, std::nullopt}}, now);
  }
  if (outcome == Outcome::left) {
    const std::string why = fmt::format("host {} left", host);
    const bool done = phase_ == Phase::running && member.part != Part::running;
    if (member.part == Part::waiting || done) {  // No other host's ranks need it.
      order(id, EndJob{exit_code, why, std::nullopt});
      members_.erase(found);
      return settle(now);
    }
    member.part = Part::leaving;
    member.exit_code = exit_code;
    if (phase_ == Phase::running && !rules_.survives)
      end_ranks({.restart = true}, why, std::nullopt, now);
    return settle(now);
  }
  if (attempt != attempt_) return;
  if (outcome == Outcome::failed && phase_ == Phase::ending) return learn_more(exit_code, failure);
  if (phase_ != Phase::running || member.part != Part::running) return;
  if (outcome == Outcome::failed) {
    const std::string why =
        failure ? describe(*failure) : fmt::format("a rank on host {} failed", host);
    fail(&member, {.restart = true, .counts = true, .end = {exit_code, why, failure}}, failure,
         now);
  } else {
    member.part = outcome == Outcome::succeeded ? Part::succeeded : Part::preempted;
    anyone_is_done_ = true;
    anyone_succeeded_ = anyone_succeeded_ || outcome == Outcome::succeeded;
    anyone_was_preempted_ = anyone_was_preempted_ || outcome == Outcome::preempted;
  }
  settle(now);
}

// `member` is null if the host was lost. `verdict` is the job's if no other host survives.
void Coordinator::fail(Member* member, const Verdict& verdict,
                       const std::optional<Failure>& failure, Time now) {
  if (!rules_.survives) return end_ranks(verdict, verdict.end.why, failure, now);
  if (member != nullptr) member->part = Part::failed;
  if (!survived_) survived_ = verdict;
}

// Adds how an already reported rank ended, and ranks that ended alike.
void Coordinator::learn_more(int exit_code, const std::optional<Failure>& failure) {
  EndJob& end = verdict_.end;
  if (!failure || !end.failure) return;
  if (end.failure->fault) return;  // The rank was still running.
  const bool is_same = failure->rank == end.failure->rank;
  if (is_same && (failure->signal || failure->exit_code)) {
    const Failure earlier = *std::exchange(end.failure, failure);
    end.exit_code = exit_code;
    end.why = describe(*failure);
    add_alike(*end.failure, earlier);
  } else {
    add_alike(*end.failure, *failure);
  }
}

void Coordinator::all_gone(Id id, int attempt, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end() || attempt != attempt_ || phase_ != Phase::ending) return;
  found->second.gone = true;
  settle(now);
}

void Coordinator::lost(Id id, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  if (over()) return;
  const std::string why = fmt::format("host {} was lost", member.said.host);
  if (phase_ == Phase::running && member.part == Part::running)
    fail(nullptr, {.restart = true, .counts = true, .end = {exit_unavailable, why, std::nullopt}},
         std::nullopt, now);
  settle(now);
}

void Coordinator::stop(const std::string& why, const Verdict& verdict, Time now) {
  if (phase_ == Phase::gathering || phase_ == Phase::pausing) return finish(verdict.end);
  if (phase_ == Phase::running)
    end_ranks(verdict, why, std::nullopt, now);
  else if (verdict_.counts)
    verdict_.restart = false;  // The first failure decides.
  else if (verdict_.restart)
    verdict_ = verdict;
  settle(now);
}

void Coordinator::end_ranks(const Verdict& verdict, const std::string& why,
                            const std::optional<Failure>& failure, Time now) {
  phase_ = Phase::ending;
  verdict_ = verdict;
  if (verdict.counts) verdict_.delay = backoff_.after(now - started_at_);
  for (auto& [id, member] : members_) {
    if (member.part == Part::waiting) continue;
    member.gone = false;
    order(id, EndRanks{why, failure});
  }
}

void Coordinator::settle(Time now) {
  if (phase_ == Phase::running) {
    const auto runs = [](const Entry& entry) { return entry.second.part == Part::running; };
    if (std::any_of(members_.begin(), members_.end(), runs)) return;
    return conclude(now);
  }
  if (phase_ == Phase::pausing && !enough()) {
    phase_ = Phase::gathering;
    gathering_since_ = now;
  }
  if (phase_ != Phase::ending) return;
  const auto gone = [](const Entry& entry) { return entry.second.gone; };
  if (!std::all_of(members_.begin(), members_.end(), gone)) return;
  if (!verdict_.restart || (verdict_.counts && restarts_ == rules_.max_restarts))
    return finish(verdict_.end);
  if (verdict_.counts) ++restarts_;
  not_before_ = now + verdict_.delay;
  gather(now);
}

// All ranks of the running attempt have ended.
void Coordinator::conclude(Time now) {
  if (survived_ && !anyone_is_done_) {
    const Verdict verdict = *survived_;
    end_ranks(verdict, verdict.end.why, verdict.end.failure, now);
    return settle(now);
  }
  const bool preempted = anyone_was_preempted_ && !(rules_.survives && anyone_succeeded_);
  if (preempted) return finish({exit_preempted, "the ranks were preempted", std::nullopt});
  if (!survived_) return finish({});
  const EndJob& first = survived_->end;
  const std::string what =
      first.failure ? name_of_ranks({first.failure->rank}) + " failed" : first.why;
  finish({0, what + "; other hosts have finished the job", std::nullopt});
}

void Coordinator::gather(Time now) {
  phase_ = Phase::gathering;
  gathering_since_ = now;
  for (auto entry = members_.begin(); entry != members_.end();) {
    if (entry->second.part == Part::leaving) {
      order(entry->first, EndJob{entry->second.exit_code, left_the_job, std::nullopt});
      entry = members_.erase(entry);
    } else {
      entry->second.part = Part::waiting;
      ++entry;
    }
  }
  if (enough()) start_after_pause(now);
}

void Coordinator::start_if_complete(Time now) {
  const int here = static_cast<int>(members_.size());
  const Hosts& hosts = rules_.hosts;
  if (here >= hosts.most || (here >= hosts.least && now >= last_arrival_ + hosts.last_call))
    start_after_pause(now);
}

// Hosts that join during the pause take part in the next start.
void Coordinator::start_after_pause(Time now) {
  if (now >= not_before_) return start(now);
  phase_ = Phase::pausing;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(not_before_ - now);
  for (const auto& [id, member] : members_)
    if (member.number >= 0) order(id, StartLater{left});
}

void Coordinator::start(Time now) {
  // Hosts of the last attempt first, then the others by arrival.
  std::vector<Entry*> chosen;
  for (Entry& entry : members_) chosen.push_back(&entry);
  std::sort(chosen.begin(), chosen.end(), [](const Entry* a, const Entry* b) {
    const auto place = [](const Entry& entry) {
      const Member& member = entry.second;
      return std::make_tuple(entry.first != 0, member.number < 0, member.number, member.arrival);
    };
    return place(*a) < place(*b);
  });
  while (static_cast<int>(chosen.size()) > rules_.hosts.most) {
    chosen.back()->second.number = -1;
    chosen.pop_back();
  }
  const std::vector<Entry*> seats = seat(chosen);

  phase_ = Phase::running;
  started_at_ = now;
  anyone_is_done_ = anyone_was_preempted_ = anyone_succeeded_ = false;
  survived_.reset();
  ++attempt_;
  Round round{.attempt = attempt_,
              .restarts = restarts_,
              .nodes = static_cast<int>(seats.size()),
              .world_size = 0,
              .job_id = rules_.job_id};
  for (const Entry* entry : seats) round.world_size += entry->second.said.nproc;
  for (Entry* entry : seats) {
    Member& member = entry->second;
    member.number = round.node;
    member.part = Part::running;
    member.gone = false;
    order(entry->first, StartRanks{round});
    ++round.node;
    round.first_rank += member.said.nproc;
  }
}

// Fixed numbers first, then earlier numbers, then free numbers.
std::vector<Coordinator::Entry*> Coordinator::seat(const std::vector<Entry*>& chosen) {
  std::vector<Entry*> seats(chosen.size(), nullptr);
  std::vector<Entry*> standing;
  const auto sit = [&](Entry* entry, int number) {
    const bool fits = number >= 0 && number < static_cast<int>(seats.size()) &&
                      seats[static_cast<std::size_t>(number)] == nullptr;
    if (fits)
      seats[static_cast<std::size_t>(number)] = entry;
    else
      standing.push_back(entry);
  };
  for (Entry* entry : chosen)
    if (entry->second.said.node_rank) sit(entry, *entry->second.said.node_rank);
  for (Entry* entry : chosen)
    if (!entry->second.said.node_rank) sit(entry, entry->second.number);
  for (Entry* entry : standing) *std::find(seats.begin(), seats.end(), nullptr) = entry;
  return seats;
}

void Coordinator::finish(const EndJob& end) {
  phase_ = Phase::over;
  for (const auto& [id, member] : members_) {
    const bool left = rules_.survives && member.part == Part::leaving;
    order(id, left ? EndJob{member.exit_code, left_the_job, std::nullopt} : end);
  }
}

void Coordinator::tick(Time now) {
  if (phase_ == Phase::pausing && now >= not_before_) return start(now);
  if (phase_ != Phase::gathering) return;
  start_if_complete(now);
  if (phase_ == Phase::gathering && now >= deadline())
    finish({exit_unavailable, missing(), std::nullopt});
}

Deadline Coordinator::deadline() const {
  if (phase_ == Phase::pausing) return not_before_;
  if (phase_ != Phase::gathering) return no_deadline;
  const auto after = [](Time start, std::chrono::milliseconds time) {
    return time < no_deadline - start ? start + time : no_deadline;
  };
  return enough() ? after(last_arrival_, rules_.hosts.last_call)
                  : after(gathering_since_, rules_.hosts.join_timeout);
}

std::string Coordinator::missing() const {
  std::string here;
  for (const auto& [id, member] : members_) here += (here.empty() ? "" : ", ") + member.said.host;
  const std::string why = verdict_.end.why.empty() ? "" : verdict_.end.why + "; ";
  return fmt::format("{}the job needs {}, but within {:g} s there were only {}: {}", why,
                     count_of_hosts(rules_.hosts.least), seconds_of(rules_.hosts.join_timeout),
                     members_.size(), here);
}

int Coordinator::taking_part() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [](const Entry& entry) {
    return entry.second.part != Part::waiting;
  }));
}

std::vector<std::pair<Coordinator::Id, Order>> Coordinator::take_orders() {
  return std::exchange(orders_, {});
}

std::string Coordinator::state(Id id, int hosts) const {
  const auto found = members_.find(id);
  if (found == members_.end() || phase_ == Phase::over) return "ended";
  if (phase_ == Phase::gathering)
    return fmt::format("waiting for hosts: {} of {} came", members_.size(),
                       range_of_hosts(rules_.hosts.least, rules_.hosts.most));
  if (phase_ == Phase::pausing)
    return fmt::format("pausing for {:g} s before attempt {}", seconds_of(verdict_.delay),
                       attempt_ + 1);
  if (found->second.part == Part::waiting)
    return fmt::format("waiting until one of the job's {} is lost: it is full",
                       count_of_hosts(hosts));
  return fmt::format("host {} of {}{}", found->second.number, hosts,
                     phase_ == Phase::ending ? ", ending" : "");
}

}  // namespace lockstep::launch
