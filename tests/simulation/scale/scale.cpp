// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scale/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tests/simulation/scale/launcher.h"
#include "tests/simulation/scale/ranks.h"
#include "tests/simulation/scale/store_host.h"
#include "tests/simulation/scale/survivors.h"

namespace lockstep::simulation {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t seed = 1;
constexpr std::size_t all_events = std::numeric_limits<std::size_t>::max();
// As launch/joining_end.cpp.
constexpr milliseconds pause_of_launchers{200};
constexpr std::chrono::minutes time_to_connect{10};

double seconds_of(Duration time) { return std::chrono::duration<double>(time).count(); }

// Events of one simulation.
class Recorder {
 public:
  Recorder(Simulation& simulation, const Server& server, std::chrono::seconds limit)
      : simulation_(simulation), server_(server), limit_(limit) {}

  // Acts now, and runs until `done` returns the time of the event, which counts from `since`.
  ScaleEvent run(std::string name, std::function<void()> act,
                 const std::function<std::optional<Time>()>& done,
                 std::optional<Time> since = std::nullopt) {
    begin_ = time_;
    const Traffic before = server_.traffic();
    const auto real = Clock::now();
    simulation_.at(time_, std::move(act));
    std::optional<Time> end;
    while (!end && time_ < begin_ + limit_) {
      advance(milliseconds(2));
      end = done();
    }
    ScaleEvent event{.name = std::move(name),
                     .seconds = std::nullopt,
                     .traffic = server_.traffic().since(before),
                     .connections = server_.most_connections(),
                     .real_seconds = seconds_since(real)};
    if (end) event.seconds = seconds_of(*end - since.value_or(begin_));
    return event;
  }

  Time begin() const { return begin_; }  // Of the last event.

  // Continues after another Recorder.
  void skip() { time_ = simulation_.now(); }

  void advance(Duration time) {
    time_ += time;
    simulation_.run(time_);
  }

 private:
  Simulation& simulation_;
  const Server& server_;
  const std::chrono::seconds limit_;
  Time time_ = simulation_.now();
  Time begin_ = {};
};

Server::Place place_of_launcher(Cpu& cpu, Cpu* clients) {
  return {.cpu = cpu,
          .clients = clients,
          .first_retry = pause_of_launchers,
          .longest_retry = pause_of_launchers,
          .most_events = all_events};
}

std::string why_hosts_ended(const LauncherHosts& launcher) {
  if (launcher.gave_up() == 0 && launcher.declared() == 0) return "";
  return fmt::format("{} hosts received nothing for 3 s and ended, the coordinator lost {}",
                     launcher.gave_up(), launcher.declared());
}

}  // namespace

int hosts_of_rack(int hosts) { return hosts == 1 ? 0 : std::max(1, hosts / 40); }

std::vector<ScaleEvent> measure_launchers(const ScaleOptions& options) {
  Simulation simulation(seed);
  Cpu cpu(1);
  const int hosts = options.hosts;
  const int rack = hosts_of_rack(hosts);
  LauncherHosts launcher(simulation, options.costs, place_of_launcher(cpu, nullptr), hosts,
                         options.ranks, std::max(1, hosts - rack));
  Recorder recorder(simulation, launcher, options.limit);
  std::vector<ScaleEvent> events;
  using Done = std::function<std::optional<Time>()>;
  const auto all_start = [&](int nodes) -> Done {
    return [&launcher, nodes, attempts = launcher.attempts()]() -> std::optional<Time> {
      if (launcher.attempts() <= attempts || launcher.nodes() != nodes) return std::nullopt;
      return launcher.reached().start;
    };
  };
  const Done all_know = [&] { return launcher.reached().death; };
  const auto record = [&](ScaleEvent event) {
    if (!event.seconds) event.note = why_hosts_ended(launcher);
    events.push_back(std::move(event));
    return events.back().seconds.has_value();
  };
  // A loss, of which all hosts receive the order to end their ranks, and then to start them.
  const auto lose = [&](const std::string& what, const std::string& then, int nodes,
                        const std::function<void()>& act) {
    recorder.advance(std::chrono::seconds(1));
    const Done started = all_start(nodes);
    const auto begin = [&launcher, act] {
      launcher.expect();
      act();
    };
    return record(recorder.run(what, begin, all_know)) &&
           record(recorder.run(
               then, [] {}, started, recorder.begin()));
  };

  if (!record(recorder.run(
          "hosts start", [&] { launcher.begin(); }, all_start(hosts))))
    return events;
  if (!lose("all hosts know of a dead rank", "hosts restart", hosts,
            [&] { launcher.fail(hosts - 1); }))
    return events;
  if (rack == 0) return events;
  if (!lose("all hosts know of a lost rack", "hosts restart without it", hosts - rack,
            [&] { launcher.lose(hosts - rack, rack); }))
    return events;
  recorder.advance(std::chrono::seconds(1));
  record(recorder.run(
      "the rack joins, hosts restart", [&] { launcher.join_again(hosts - rack, rack); },
      all_start(hosts)));
  if (launcher.overlaps() > 0) events.back().note = "ranks of two attempts ran at once";
  return events;
}

std::vector<ScaleEvent> measure_ranks(const ScaleOptions& options) {
  Simulation simulation(seed);
  Cpu cpu(1);
  StoreHost store(simulation, options.costs, {.cpu = cpu});
  RanksMeeting meeting(store, simulation, options.hosts * options.ranks);
  Recorder recorder(simulation, store, options.limit);
  const auto met = [&] { return meeting.met(); };
  std::vector<ScaleEvent> events{recorder.run(
      "ranks connect to the store", [&] { meeting.meet_at_word(); }, met)};
  if (store.refused() > 0)
    events.back().note = fmt::format("{} connections were repeated", store.refused());
  if (!events.back().seconds) return events;
  events.push_back(recorder.run(
      "ranks read a table of all", [&] { meeting.exchange_table(); }, met));
  if (!meeting.error().empty()) events.back().note = meeting.error();
  return events;
}

std::vector<ScaleEvent> measure_survivors(const ScaleOptions& options) {
  const int ranks = options.hosts * options.ranks;
  const int lost = hosts_of_rack(options.hosts) * options.ranks;
  std::vector<ScaleEvent> events;
  if (lost == 0) return events;
  Simulation simulation(seed);
  Cpu cpu(1);
  StoreHost store(simulation, options.costs, {.cpu = cpu});
  RanksMeeting meeting(store, simulation, ranks);
  Survivors survivors(store, simulation, ranks);
  Recorder recorder(simulation, store, options.limit);
  const auto agreed = [&] { return survivors.agreed(); };
  Recorder(simulation, store, time_to_connect)
      .run(
          "", [&] { meeting.meet_at_word(); }, [&] { return meeting.met(); });
  recorder.skip();
  survivors.assume_group();
  recorder.advance(milliseconds(100));
  events.push_back(recorder.run(
      "survivors: agree without the rack", [&] { survivors.lose(ranks - lost, lost); }, agreed));
  if (!events.back().seconds) return events;
  ScaleEvent event = recorder.run(
      "survivors: agree with its replacements", [&] { survivors.join(ranks - lost, lost); },
      agreed);
  int agreements = 1;
  for (; event.seconds && survivors.waiting() > 0; ++agreements) {
    const ScaleEvent more = recorder.run(
        "", [&] { survivors.admit_more(); }, agreed);
    event.seconds = more.seconds ? std::optional(*event.seconds + *more.seconds) : std::nullopt;
    event.traffic.messages_in += more.traffic.messages_in;
    event.traffic.messages_out += more.traffic.messages_out;
    event.traffic.bytes_in += more.traffic.bytes_in;
    event.traffic.bytes_out += more.traffic.bytes_out;
    event.real_seconds += more.real_seconds;
  }
  if (agreements > 1) event.note = fmt::format("in {} agreements", agreements);
  const auto members = survivors.decision().members.size();
  if (event.seconds && members != static_cast<std::size_t>(ranks))
    event.note = fmt::format("the group has {} of {} ranks", members, ranks);
  events.push_back(std::move(event));
  return events;
}

std::vector<ScaleEvent> predict_tree(const ScaleOptions& options) {
  if (options.hosts < 4) return {};
  const int relays = static_cast<int>(std::ceil(std::sqrt(options.hosts)));
  const int children = (options.hosts + relays - 1) / relays;
  const auto level = [&](int hosts, int ranks) {
    ScaleOptions one = options;
    one.hosts = hosts;
    one.ranks = ranks;
    return one;
  };
  const auto joined = [&](const std::string& name, const std::vector<ScaleEvent>& levels) {
    ScaleEvent event = levels.front();  // The traffic at the root.
    event.name = "tree: " + name;
    event.seconds = 0;
    event.connections = relays - 1 + children - 1 + options.ranks;
    event.real_seconds = 0;
    for (const ScaleEvent& one : levels) {
      event.seconds = event.seconds && one.seconds ? std::optional(*event.seconds + *one.seconds)
                                                   : std::nullopt;
      event.real_seconds += one.real_seconds;
    }
    return event;
  };
  const auto top = measure_launchers(level(relays, options.ranks));
  const auto bottom = measure_launchers(level(children, options.ranks));
  std::vector<ScaleEvent> events;
  for (std::size_t i = 0; i < std::min({top.size(), bottom.size(), std::size_t{3}}); ++i)
    events.push_back(joined(top[i].name, {top[i], bottom[i]}));
  const auto first = [&](int hosts, int ranks) {
    return measure_ranks(level(hosts, ranks)).front();
  };
  const ScaleEvent root = first(relays, 1);
  events.push_back(joined(root.name, {root, first(children, 1), first(1, options.ranks)}));
  return events;
}

std::pair<double, double> predict_rendezvous(const ScaleOptions& options, int cores) {
  ScaleOptions here = options;
  here.costs.latency_ns = 0;
  here.costs.gigabits = 1e6;
  double agents = 0;
  {
    Simulation simulation(seed);
    Cpu cpu(1);
    LauncherHosts launcher(simulation, here.costs, place_of_launcher(cpu, &cpu), here.hosts,
                           here.ranks, here.hosts);
    Recorder recorder(simulation, launcher, here.limit);
    cpu.run(simulation.now(), nanoseconds_of(here.costs.make_end * here.hosts));
    agents = recorder
                 .run(
                     "", [&] { launcher.begin(); }, [&] { return launcher.reached().start; })
                 .seconds.value_or(0);
  }
  Simulation simulation(seed);
  Cpu cpu(cores);
  StoreHost store(simulation, here.costs, {.cpu = cpu, .clients = &cpu});
  RanksMeeting meeting(store, simulation, here.hosts * here.ranks);
  Recorder recorder(simulation, store, here.limit);
  const Duration thread = nanoseconds_of(here.costs.start_thread);
  const double ranks =
      recorder
          .run(
              "", [&] { meeting.meet_at_word(thread); }, [&] { return meeting.met(); })
          .seconds.value_or(0);
  return {agents * 1e3, ranks * 1e3};
}

}  // namespace lockstep::simulation
