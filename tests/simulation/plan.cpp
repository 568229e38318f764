// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tests/simulation/random.h"

namespace lockstep::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Place {
  std::string_view call;
  std::string_view key;
  int most;  // `count` is at most this.
};

// Where deaths are interesting.
constexpr std::array places{
    Place{"set", "seat/", 1},
    Place{"set", "vote/", 4},
    Place{"wait", "decision/", 12},
    Place{"find", "newest", 8},
    Place{"find", "vote/", 12},
    Place{"set", "heartbeat", 8},
    Place{"set", "invitation/", 2},
    Place{"compare_set", "newest", 3},
    Place{"got an answer", "newest", 8},
    Place{"set", "decision/", 3},
    Place{"compare_set", "arrival/", 2},
    Place{"set", "keys/", 6},
    Place{"erase", "", 12},
    Place{"got an answer", "", 200},
    Place{"connects", "", 3},
    Place{"makes its objects", "", 3},
    Place{"computes", "", 12},
    Place{"has computed", "", 12},
    Place{"Survival::step", "", 12},
    Place{"leaves a collective", "", 24},
    Place{"applies", "", 12},
    Place{"has applied", "", 12},
    Place{"sends the state", "", 2},
    Place{"has sent the state", "", 2},
    Place{"receives the state", "", 1},
    Place{"has received the state", "", 1},
    Place{"finishes", "", 1},
    Place{"has finished", "", 1},
};

FaultKind draw_kind(Random& random) {
  const auto number = random.between(1, 100);
  if (number <= 40) return FaultKind::kill;
  if (number <= 55) return FaultKind::stop;
  if (number <= 64) return FaultKind::leave;
  if (number <= 67) return FaultKind::slow_process;
  if (number <= 72) return FaultKind::kill_host;
  if (number <= 75) return FaultKind::cut_to_store;
  if (number <= 78) return FaultKind::cut_from_store;
  if (number <= 82) return FaultKind::cut_store;
  if (number <= 86) return FaultKind::slow_link;
  if (number <= 91) return FaultKind::lose_store_connection;
  if (number <= 99) return FaultKind::lose_peer_connection;
  return FaultKind::end_store;
}

std::string_view name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill:
      return "kill";
    case FaultKind::stop:
      return "stop";
    case FaultKind::leave:
      return "SIGTERM to";
    case FaultKind::slow_process:
      return "slow down";
    case FaultKind::kill_host:
      return "kill host";
    case FaultKind::cut_to_store:
      return "cut requests of host";
    case FaultKind::cut_from_store:
      return "cut replies to host";
    case FaultKind::cut_store:
      return "cut the store from host";
    case FaultKind::slow_link:
      return "slow link to the store of host";
    case FaultKind::lose_store_connection:
      return "lose the store's connection to";
    case FaultKind::lose_peer_connection:
      return "lose the connection between";
    case FaultKind::end_store:
      return "end the store";
  }
  return "";
}

PlannedFault draw_fault(Random& random, const Plan& plan) {
  PlannedFault fault{.kind = draw_kind(random)};
  fault.target = static_cast<int>(
      random.between(0, (is_of_host(fault.kind) ? plan.hosts : plan.processes) - 1));
  fault.other = static_cast<int>(random.between(0, plan.processes - 1));
  const bool is_long = random.one_in(3);
  fault.length = milliseconds(is_long ? random.between(1000, 12'000) : random.between(1, 900));
  fault.is_timed = random.one_in(3);
  fault.time = milliseconds(random.between(0, plan.steps * plan.longest_compute.count() * 3));
  const Place& place = places[static_cast<std::size_t>(random.between(0, std::ssize(places) - 1))];
  fault.call = place.call;
  fault.key = place.key;
  fault.count = static_cast<int>(random.between(1, place.most));
  if (random.one_in(2)) fault.delay = microseconds(random.between(1, 400));
  return fault;
}

}  // namespace

bool is_of_host(FaultKind kind) {
  return kind == FaultKind::kill_host || kind == FaultKind::cut_to_store ||
         kind == FaultKind::cut_from_store || kind == FaultKind::cut_store ||
         kind == FaultKind::slow_link;
}

std::string describe(const PlannedFault& fault) {
  std::string text(name_of(fault.kind));
  if (fault.kind != FaultKind::end_store)
    text += fmt::format(" {}{}", is_of_host(fault.kind) ? "" : "rank ", fault.target);
  if (fault.kind == FaultKind::lose_peer_connection)
    text += fmt::format(" and rank {}", fault.other);
  const bool is_of_link = is_of_host(fault.kind) && fault.kind != FaultKind::kill_host;
  if (fault.kind == FaultKind::stop || is_of_link)
    text += fmt::format(" for {} ms", fault.length.count());
  if (fault.is_timed) return text + fmt::format(" at {} ms", fault.time.count());
  text += fmt::format(" at call {} of '{}{}{}'", fault.count, fault.call,
                      fault.key.empty() ? "" : " ", fault.key);
  if (fault.delay.count() > 0) text += fmt::format(" and {} us", fault.delay.count());
  return text;
}

std::string describe(const Plan& plan) {
  return fmt::format(
      "seed {}: {} processes on {} hosts, {} steps of up to {} ms, at least {} ranks, patience {} "
      "ms, {} restarts per rank, {} faults",
      plan.seed, plan.processes, plan.hosts, plan.steps, plan.longest_compute.count(), plan.least,
      plan.patience.count(), plan.most_restarts, plan.faults.size());
}

Plan draw_plan(std::uint64_t seed, std::optional<int> processes) {
  Random random(seed);
  Plan plan{.seed = seed};
  const std::int64_t most = random.one_in(20) ? 64 : random.one_in(3) ? 12 : 5;
  const auto drawn = random.between(2, most);
  plan.processes = processes.value_or(static_cast<int>(drawn));
  plan.hosts = static_cast<int>(random.between(1, std::min(plan.processes, 6)));
  plan.steps = static_cast<int>(random.between(3, 15));
  plan.least = random.one_in(10) ? 2 : 1;
  plan.patience = milliseconds(random.between(1000, 4000));
  plan.longest_compute = milliseconds(random.between(2, 60));
  plan.most_restarts = static_cast<int>(random.between(0, 3));
  plan.longest_restart = milliseconds(random.between(60, 2000));
  const auto faults = random.one_in(20) ? 0 : random.between(1, random.one_in(4) ? 12 : 4);
  for (int i = 0; i < faults; ++i) plan.faults.push_back(draw_fault(random, plan));
  return plan;
}

}  // namespace lockstep::simulation
