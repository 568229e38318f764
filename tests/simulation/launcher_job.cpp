// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/launcher_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::simulation {
namespace {

using launch::Coordinator;
using std::chrono::milliseconds;

constexpr std::uint64_t stream_of_agents = 2'000'000;
constexpr milliseconds longest_attempt{20'000};

int drawn_hosts(Random& random, std::optional<int> hosts) {
  const auto drawn = random.between(2, random.one_in(4) ? 12 : 5);
  return hosts.value_or(static_cast<int>(drawn));
}

}  // namespace

LauncherResult run_launcher(std::uint64_t seed, std::optional<int> hosts,
                            const Simulation::Trace& trace) {
  return LauncherJob(seed, hosts, trace).run();
}

Coordinator::Rules LauncherJob::draw_rules(Random& random, int hosts) {
  Coordinator::Rules rules{.job_id = "simulated", .hosts = {}};
  rules.hosts.most = static_cast<int>(random.between(std::max(1, hosts - 2), hosts));
  rules.hosts.least = static_cast<int>(random.between(1, rules.hosts.most));
  rules.hosts.join_timeout = milliseconds(random.between(1000, 60'000));
  rules.hosts.last_call = milliseconds(random.between(100, 3000));
  rules.max_restarts = static_cast<int>(random.between(0, 4));
  rules.max_restart_delay = milliseconds(random.between(0, 5000));
  rules.survives = random.one_in(2);
  return rules;
}

LauncherJob::LauncherJob(std::uint64_t seed, std::optional<int> hosts,
                         const Simulation::Trace& trace)
    : simulation_(seed),
      violation_(simulation_),
      random_(seed, stream_of_agents),
      rules_(draw_rules(random_, drawn_hosts(random_, hosts))),
      coordinator_(rules_, simulation_.now()) {
  simulation_.set_trace(trace);
  const int count = hosts.value_or(rules_.hosts.most + static_cast<int>(random_.between(0, 2)));
  for (int id = 0; id < count; ++id)
    agents_.push_back({.id = id, .nproc = static_cast<int>(random_.between(1, 8))});
  for (Agent& agent : agents_) draw_events(agent);
}

void LauncherJob::draw_events(Agent& agent) {
  const auto at = [&](std::int64_t most, void (LauncherJob::*act)(Agent&)) {
    simulation_.after(milliseconds(random_.between(0, most)),
                      [this, &agent, act] { (this->*act)(agent); });
  };
  if (agent.id == 0)
    join(agent);
  else if (!random_.one_in(15))
    at(random_.one_in(5) ? 40'000 : 2000, &LauncherJob::join);
  if (agent.id != 0 && random_.one_in(4)) at(60'000, &LauncherJob::lose);
  if (random_.one_in(12)) {
    const bool leaves = agent.id != 0 && rules_.hosts.least < rules_.hosts.most;
    simulation_.after(milliseconds(random_.between(0, 60'000)),
                      [this, &agent, leaves] { stop(agent, leaves); });
  }
}

// --- Messages ------------------------------------------------------------------------------------

// To the coordinator. Agent 0 is in its process.
void LauncherJob::send(Agent& agent, std::function<void()> act) {
  if (agent.id != 0)
    agent.last_message = std::max(agent.last_message, simulation_.now() + latency());
  simulation_.at(agent.id == 0 ? simulation_.now() : agent.last_message,
                 [this, &agent, act = std::move(act)] {
                   if (agent.state == State::lost) return;
                   act();
                   dispatch();
                 });
}

void LauncherJob::dispatch() {
  std::map<int, std::vector<std::pair<int, Round>>> rounds;
  for (auto& [id, order] : coordinator_.take_orders()) {
    ++orders_;
    if (const auto* const start = std::get_if<StartRanks>(&order))
      rounds[start->round.attempt].emplace_back(id, start->round);
    Agent& agent = agents_[static_cast<std::size_t>(id)];
    if (agent.id != 0) agent.last_order = std::max(agent.last_order, simulation_.now() + latency());
    simulation_.at(agent.id == 0 ? simulation_.now() : agent.last_order,
                   [this, &agent, order = std::move(order)] {
                     if (agent.state != State::lost) obey(agent, order);
                   });
  }
  for (const auto& [attempt, started] : rounds) check_start(attempt, started);
  const Deadline deadline = coordinator_.deadline();
  if (deadline == no_deadline || coordinator_.over()) return;
  simulation_.at(std::max(deadline, simulation_.now()), [this, deadline] {
    if (coordinator_.deadline() != deadline) return;  // Another tick is due.
    coordinator_.tick(simulation_.now());
    if (coordinator_.deadline() == deadline && !coordinator_.over())
      return violation_.report("a deadline is acted on", "tick() at deadline() changes nothing");
    dispatch();
  });
}

void LauncherJob::check_start(int attempt, const std::vector<std::pair<int, Round>>& rounds) {
  if (attempt != attempt_ + 1)
    violation_.report("attempts are counted",
                      fmt::format("attempt {} follows {}", attempt, attempt_));
  attempt_ = attempt;
  succeeded_.clear();
  started_.clear();
  const int nodes = static_cast<int>(rounds.size());
  if (nodes < rules_.hosts.least || nodes > rules_.hosts.most)
    violation_.report("numbers of hosts", fmt::format("attempt {} has {} hosts", attempt, nodes));
  std::map<int, std::pair<int, int>> ranks;  // By node: the first rank, and their number.
  int world_size = 0;
  for (const auto& [id, round] : rounds) {
    const Agent& agent = agents_[static_cast<std::size_t>(id)];
    started_.insert(id);
    world_size += agent.nproc;
    if (!ranks.emplace(round.node, std::pair(round.first_rank, agent.nproc)).second)
      violation_.report("node numbers are unique",
                        fmt::format("attempt {}: node {}", attempt, round.node));
    if (id == 0 && round.node != 0)
      violation_.report("the store's host is node 0", fmt::format("attempt {}", attempt));
    if (round.restarts > rules_.max_restarts || round.restarts < counted_)
      violation_.report("restarts are limited",
                        fmt::format("attempt {}: {}", attempt, round.restarts));
    counted_ = round.restarts;
  }
  int next = 0;
  for (const auto& [node, range] : ranks) {
    if (range.first != next)
      violation_.report("ranks are complete", fmt::format("attempt {}: node {} begins at rank {}",
                                                          attempt, node, range.first));
    next += range.second;
  }
  for (const auto& [id, round] : rounds)
    if (round.world_size != world_size || round.nodes != nodes)
      violation_.report("all hosts get the same numbers", fmt::format("attempt {}", attempt));
  for (const Agent& agent : agents_)
    if (agent.state == State::running || agent.state == State::ending)
      violation_.report("attempts do not overlap",
                        fmt::format("attempt {} starts while host {} runs ranks of attempt {}",
                                    attempt, agent.id, agent.attempt));
}

// --- Agents --------------------------------------------------------------------------------------

void LauncherJob::join(Agent& agent) {
  if (agent.state != State::absent) return;
  simulation_.trace(fmt::format("host {} joins with {} ranks", agent.id, agent.nproc));
  agent.state = State::waiting;
  send(agent, [this, &agent] {
    const auto refusal = coordinator_.join(agent.id,
                                           {.host = fmt::format("host{}", agent.id),
                                            .nproc = agent.nproc,
                                            .least = rules_.hosts.least,
                                            .most = rules_.hosts.most},
                                           simulation_.now());
    if (refusal && !coordinator_.over()) violation_.report("hosts may join", *refusal);
    if (refusal) agent.state = State::ended;
  });
}

void LauncherJob::obey(Agent& agent, const Order& order) {
  if (agent.state == State::ended) return;
  if (const auto* const round = std::get_if<StartRanks>(&order)) start(agent, round->round);
  if (std::holds_alternative<EndRanks>(order)) {
    simulation_.trace(fmt::format("host {} receives the order to end its ranks", agent.id));
    if (agent.state == State::concluded)
      return send(agent, [this, &agent, attempt = agent.attempt] {
        coordinator_.all_gone(agent.id, attempt, simulation_.now());
      });
    agent.has_reported = true;
    if (agent.state == State::running) end_ranks(agent);
  }
  if (const auto* const end = std::get_if<EndJob>(&order)) {
    simulation_.trace(fmt::format("host {} ends with {}: {}", agent.id, end->exit_code, end->why));
    if (agent.end) violation_.report("the job ends once", fmt::format("host {}", agent.id));
    agent.end = *end;
    if (agent.state == State::running) end_ranks(agent);
    if (agent.state != State::ending) finish(agent);
  }
}

void LauncherJob::start(Agent& agent, const Round& round) {
  simulation_.trace(fmt::format("host {} starts attempt {} as node {} of {}", agent.id,
                                round.attempt, round.node, round.nodes));
  if (agent.state == State::running || agent.state == State::ending)
    return violation_.report("no ranks of an earlier attempt run",
                             fmt::format("host {}", agent.id));
  if (agent.attempt >= round.attempt)
    return violation_.report("attempts only increase", fmt::format("host {}", agent.id));
  agent.state = State::running;
  agent.attempt = round.attempt;
  agent.has_reported = false;
  const int start = ++agent.starts;
  const Outcome outcome = random_.one_in(3)    ? Outcome::failed
                          : random_.one_in(15) ? Outcome::preempted
                                               : Outcome::succeeded;
  simulation_.after(milliseconds(random_.between(1, longest_attempt.count())),
                    [this, &agent, start, outcome] {
                      if (agent.starts != start || agent.state != State::running) return;
                      simulation_.trace(fmt::format("ranks of host {} end: {}", agent.id,
                                                    outcome == Outcome::succeeded   ? "succeeded"
                                                    : outcome == Outcome::preempted ? "preempted"
                                                                                    : "failed"));
                      if (outcome != Outcome::failed) return conclude(agent, outcome);
                      report(agent, Outcome::failed);
                      end_ranks(agent);
                    });
}

void LauncherJob::end_ranks(Agent& agent) {
  agent.state = State::ending;
  const int start = ++agent.starts;
  simulation_.after(milliseconds(random_.between(0, 3000)), [this, &agent, start] {
    if (agent.starts == start && agent.state == State::ending) conclude(agent, Outcome::failed);
  });
}

void LauncherJob::report(Agent& agent, Outcome outcome) {
  agent.has_reported = true;
  const int code = outcome == Outcome::succeeded ? 0
                   : outcome == Outcome::failed  ? 1
                                                 : exit_preempted;
  send(agent, [this, &agent, outcome, code, attempt = agent.attempt] {
    if (outcome == Outcome::succeeded && attempt == attempt_) succeeded_.insert(agent.id);
    coordinator_.report(agent.id, attempt, outcome, code, std::nullopt, simulation_.now());
  });
}

void LauncherJob::conclude(Agent& agent, Outcome outcome) {
  agent.state = State::concluded;
  if (!agent.has_reported) report(agent, outcome);
  send(agent, [this, &agent, attempt = agent.attempt] {
    coordinator_.all_gone(agent.id, attempt, simulation_.now());
  });
  if (agent.end || agent.is_leaving) finish(agent);
}

// Its connection ends.
void LauncherJob::finish(Agent& agent) {
  agent.state = State::ended;
  if (agent.id == 0) return;
  send(agent, [this, &agent] { coordinator_.lost(agent.id, simulation_.now()); });
}

// By a signal.
void LauncherJob::stop(Agent& agent, bool leaves) {
  if (!is_here(agent) || agent.end || agent.is_leaving) return;
  simulation_.trace(fmt::format("host {} {}", agent.id, leaves ? "leaves" : "is stopped"));
  agent.is_leaving = leaves;
  if (agent.state == State::running) end_ranks(agent);
  report(agent, leaves ? Outcome::left : Outcome::stopped);
  if (leaves && agent.state != State::ending) finish(agent);
}

void LauncherJob::lose(Agent& agent) {
  if (!is_here(agent)) return;
  simulation_.trace(fmt::format("host {} is lost", agent.id));
  agent.state = State::lost;
  simulation_.after(milliseconds(random_.between(0, 3000)), [this, &agent] {
    coordinator_.lost(agent.id, simulation_.now());
    dispatch();
  });
}

// --- The run -------------------------------------------------------------------------------------

void LauncherJob::check_end() {
  if (violation_.found()) return;
  if (!coordinator_.over()) return violation_.report("a job ends", coordinator_.state(0));
  for (const Agent& agent : agents_)
    if (is_here(agent))
      violation_.report("every host ends", fmt::format("host {} does not", agent.id));
  const auto& end = agents_.front().end;
  if (!end) return violation_.report("every host ends", "host 0 got no end");
  const bool all_succeeded = std::ranges::includes(succeeded_, started_);
  if (end->exit_code == 0 && (rules_.survives ? succeeded_.empty() : !all_succeeded))
    violation_.report("success is earned",
                      fmt::format("{} of {} hosts succeeded in attempt {}", succeeded_.size(),
                                  started_.size(), attempt_));
}

LauncherResult LauncherJob::run() {
  dispatch();
  simulation_.run(simulation_.now() + std::chrono::hours(3));
  check_end();
  const auto& end = agents_.front().end;
  return {.violation = violation_.found(),
          .events = simulation_.events(),
          .attempts = attempt_ + 1,
          .orders = orders_,
          .succeeded = end && end->exit_code == 0};
}

}  // namespace lockstep::simulation
