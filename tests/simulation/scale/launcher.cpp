// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/launch/agent_link.h"

namespace lockstep::simulation {
namespace {

using launch::AgentFrame;
using launch::AgentLink;
using launch::Coordinator;

std::string name_of_host(int host) { return fmt::format("node{:05}", host); }

Coordinator::Rules rules_of(int hosts, int least) {
  Coordinator::Rules rules{.job_id = "scale.0123456789abcdef0123456789abcdef", .hosts = {}};
  rules.hosts.least = least;
  rules.hosts.most = hosts;
  rules.max_restarts = 1000;
  rules.max_restart_delay = std::chrono::milliseconds(0);
  return rules;
}

Failure failure_on(int host, int ranks) {
  Failure failure{.rank = host * ranks};
  failure.host = name_of_host(host);
  failure.pid = 12345;
  failure.signal = 9;
  return failure;
}

}  // namespace

LauncherHosts::LauncherHosts(Simulation& simulation, const Costs& costs, Place place, int hosts,
                             int ranks, int least)
    : Server(simulation, costs, place, simulation.seed()),
      hosts_(hosts),
      ranks_(ranks),
      rules_(rules_of(hosts, least)),
      coordinator_(rules_, simulation.now()),
      agents_(static_cast<std::size_t>(hosts)),
      last_turn_(simulation.now()) {}

LauncherTimes LauncherHosts::reached() const {
  LauncherTimes reached;
  if (progress_.attempt >= 0 && progress_.started == progress_.nodes)
    reached.start = progress_.started_at;
  if (progress_.to_end > 0 && progress_.ended >= progress_.to_end)
    reached.death = progress_.ended_at;
  return reached;
}

// --- The coordinator's side ----------------------------------------------------------------------

// watch(), poll() and the search for each descriptor's events: launch/coordinating_end.cpp.
double LauncherHosts::cost_of_turn() const {
  auto entries = static_cast<double>(members_.size() + in_handshake() + 1);
  if (is_one_process()) entries += static_cast<double>(hosts_ - 1);
  return entries * costs().turn_entry;
}

std::vector<Server::Peer> LauncherHosts::take_ready() {
  std::vector<Peer> ready = Server::take_ready();
  std::ranges::sort(ready);
  return ready;
}

void LauncherHosts::on_admitted(Peer peer) {
  members_[peer] = {
      .id = next_id_, .last_sign = begin_of_turn(), .beat_at = begin_of_turn() + AgentLink::pulse};
  hosts_of_[next_id_++] = peer;
}

void LauncherHosts::end_turn() {
  serve_members();
  coordinator_.tick(clock());
  dispatch();
  send_states();
  Time next = std::min(coordinator_.deadline(), begin_of_turn() + AgentLink::pulse);
  if (states_wait_) next = std::min(next, next_states_);
  for (const auto& [peer, member] : members_) next = std::min(next, member.beat_at);
  turn_at(std::max(next, clock()));
}

void LauncherHosts::serve_members() {
  // As OwnPulse: its own delay is no silence of the others.
  const Time now = begin_of_turn();
  const bool was_late = now - last_turn_ > AgentLink::pulse + std::chrono::seconds(1);
  last_turn_ = now;
  std::vector<Peer> lost;
  for (auto& [peer, member] : members_) {
    if (was_late && member.last_sign != Time{}) member.last_sign = now;
    if (now >= member.beat_at) {
      member.beat_at = now + AgentLink::pulse;
      charge(costs().link_send);
      reply(
          peer, launch::encode(launch::AliveFrame{}).size(),
          [this, host = peer] { receive(host, [] {}); }, /*counts=*/false);
    }
    if (now - member.last_sign >= AgentLink::longest_silence) lost.push_back(peer);
  }
  for (const Peer peer : lost) {
    const auto id = members_.at(peer).id;
    ++declared_;
    members_.erase(peer);
    hosts_of_.erase(id);
    close(peer);
    coordinator_.lost(id, clock());
  }
}

void LauncherHosts::send_frame(Peer peer, std::size_t bytes, std::function<void()> arrives) {
  charge(costs().link_send);
  reply(peer, bytes, [this, peer, arrives = std::move(arrives)] { receive(peer, arrives); });
}

void LauncherHosts::dispatch() {
  for (auto orders = coordinator_.take_orders(); !orders.empty();
       orders = coordinator_.take_orders()) {
    int ends = 0;
    for (auto& [id, order] : orders) {
      if (auto* const starts = std::get_if<StartRanks>(&order)) prepare(starts->round);
      const auto found = hosts_of_.find(id);
      if (id != 0 && found == hosts_of_.end()) continue;  // It was lost since.
      const auto host = static_cast<std::size_t>(id == 0 ? 0 : found->second);
      // A dead host that is not known as lost yet gets the order, too.
      if (std::holds_alternative<EndRanks>(order) && agents_[host].is_here) ++ends;
      if (id == 0)
        obey_here(order);
      else
        send_order(found->second, order);
    }
    if (ends > 0) progress_.to_end = ends;
  }
}

void LauncherHosts::prepare(Round& round) {
  round.master_addr = name_of_host(0);
  round.master_port = 29500;
  round.store = fmt::format("{}:34567", round.master_addr);
  if (round.attempt == progress_.attempt) return;
  progress_.started = 0;
  progress_.attempt = round.attempt;
  progress_.nodes = round.nodes;
}

void LauncherHosts::send_order(Peer peer, const Order& order) {
  if (const auto* const starts = std::get_if<StartRanks>(&order))
    send_frame(peer, launch::encode(*starts).size(),
               [this, peer, round = starts->round] { start(peer, round); });
  if (const auto* const ends = std::get_if<EndRanks>(&order))
    send_frame(peer, launch::encode(*ends).size(), [this, peer] { end(peer); });
}

void LauncherHosts::obey_here(const Order& order) {
  if (const auto* const started = std::get_if<StartRanks>(&order)) start(0, started->round);
  if (std::holds_alternative<EndRanks>(order)) end(0);
}

// As CoordinatingEnd::tell_states().
void LauncherHosts::send_states() {
  states_wait_ = begin_of_turn() < next_states_;
  if (states_wait_) return;
  next_states_ = begin_of_turn() + launch::pause_between_states(members_.size());
  const int hosts = coordinator_.taking_part();
  charge(costs().count_host * static_cast<double>(members_.size()));
  std::string latest;
  std::size_t bytes = 0;
  for (auto& [peer, member] : members_) {
    if (!member.joined) continue;
    std::string state = coordinator_.state(member.id, hosts);
    charge(costs().state);
    if (state == member.state) continue;
    member.state = std::move(state);
    if (member.state != latest) {
      latest = member.state;
      bytes = launch::encode(launch::StateFrame{name_of_host(0), latest, {}}).size();
    }
    send_frame(peer, bytes, [] {});
  }
}

// --- The agents' side ----------------------------------------------------------------------------

void LauncherHosts::begin() {
  coordinator_.join(0,
                    {.host = name_of_host(0),
                     .nproc = ranks_,
                     .node_rank = 0,
                     .least = rules_.hosts.least,
                     .most = rules_.hosts.most},
                    simulation().now());
  agents_[0].is_here = true;
  turn_at(simulation().now());
  for (int host = 1; host < hosts_; ++host) join(host);
}

void LauncherHosts::join_again(int first, int n) {
  for (int host = first; host < first + n; ++host) join(host);
}

void LauncherHosts::join(Peer host) {
  connect(host, [this, host] {
    SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
    agent = {.is_here = true, .beats = agent.beats + 1, .last_sign = simulation().now()};
    const Coordinator::JoiningNode node{.host = name_of_host(host),
                                        .nproc = ranks_,
                                        .least = rules_.hosts.least,
                                        .most = rules_.hosts.most};
    const launch::JobCommand command{.program = "train",
                                     .arguments = {"--epochs", "90", "--batch", "256"},
                                     .digest = std::string(64, '0')};
    post(host, launch::JoinFrame{node, command}, [this, host, node] {
      SimulatedMember& member = members_.at(host);
      member.joined = true;
      coordinator_.join(member.id, node, clock());
    });
    beat(host, agent.beats);
  });
}

// `read_there` acts in the coordinator's loop.
void LauncherHosts::post(Peer host, const AgentFrame& frame, std::function<void()> read_there) {
  const bool is_beat = std::holds_alternative<launch::AliveFrame>(frame);
  simulation().at(
      work(nanoseconds_of(costs().link_send)),
      [this, host, bytes = launch::encode(frame).size(), is_beat,
       number = agents_[static_cast<std::size_t>(host)].beats, act = std::move(read_there)] {
        const SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
        if (!agent.is_here || agent.beats != number) return;
        send(
            host, bytes,
            [this, host, act] {
              charge(costs().link_receive);
              const auto found = members_.find(host);
              if (found == members_.end()) return;
              found->second.last_sign = begin_of_turn();
              act();
            },
            !is_beat);
      });
}

void LauncherHosts::beat(Peer host, int beats) {
  simulation().after(AgentLink::pulse, [this, host, beats] {
    SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
    if (!agent.is_here || agent.beats != beats) return;
    if (simulation().now() - agent.last_sign >= AgentLink::longest_silence) {
      ++gave_up_;
      agent.is_here = false;
      // It closes its connection, which the coordinator counts as its loss.
      return send(
          host, 0, [this, host] { close_link(host); }, /*counts=*/false);
    }
    post(host, launch::AliveFrame{}, [] {});
    beat(host, beats);
  });
}

void LauncherHosts::close_link(Peer host) {
  const auto found = members_.find(host);
  if (found != members_.end()) found->second.last_sign = {};
}

void LauncherHosts::receive(Peer host, std::function<void()> act) {
  simulation().at(work(nanoseconds_of(costs().link_receive)), [this, host, act = std::move(act)] {
    SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
    if (!agent.is_here) return;
    agent.last_sign = simulation().now();
    act();
  });
}

void LauncherHosts::start(Peer host, const Round& round) {
  SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
  if (agent.runs || agent.attempt >= round.attempt) ++overlaps_;
  agent.runs = true;
  agent.attempt = round.attempt;
  if (round.attempt != progress_.attempt) return;
  ++progress_.started;
  progress_.started_at = simulation().now();
}

// As Agent::end() and conclude(): launch/agent.cpp.
void LauncherHosts::end(Peer host) {
  SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
  ++progress_.ended;
  progress_.ended_at = simulation().now();
  agent.runs = false;
  const auto gone = [this, host, attempt = agent.attempt] {
    coordinator_.all_gone(host == 0 ? 0 : members_.at(host).id, attempt, simulation().now());
  };
  if (host == 0) return gone();
  post(host, launch::AllGoneFrame{agent.attempt}, gone);
}

// Reports a rank's end, and again, in more detail, when the other ranks have ended.
void LauncherHosts::fail(int host) {
  SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
  const Failure failure = failure_on(host, ranks_);
  const auto report = [this, host, failure, attempt = agent.attempt] {
    coordinator_.report(host == 0 ? 0 : members_.at(host).id, attempt, Outcome::failed, 137,
                        failure, simulation().now());
  };
  const auto gone = [this, host, attempt = agent.attempt] {
    coordinator_.all_gone(members_.at(host).id, attempt, simulation().now());
  };
  agent.runs = false;
  if (host == 0) {
    report();
    return turn_at(simulation().now());
  }
  const launch::ReportFrame frame{
      .attempt = agent.attempt, .outcome = Outcome::failed, .exit_code = 137, .failure = failure};
  post(host, frame, report);
  post(host, frame, report);
  post(host, launch::AllGoneFrame{agent.attempt}, gone);
}

void LauncherHosts::lose(int first, int n) {
  for (int host = first; host < first + n; ++host) {
    SimulatedAgent& agent = agents_[static_cast<std::size_t>(host)];
    agent.is_here = agent.runs = false;
    cut(host);
  }
}

}  // namespace lockstep::simulation
