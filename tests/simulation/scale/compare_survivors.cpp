// Compares the requests and times of Survivors with those of production ElasticGroups.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/elastic_runtime.h"
#include "tests/simulation/scale/scale.h"
#include "tests/simulation/scale/store_host.h"
#include "tests/simulation/simulated_group.h"

namespace lockstep::simulation {
namespace {

using Ask = job::StoreRequest::Kind;
using Kind = job::StoreReply::Kind;
using std::chrono::milliseconds;

// A process's client, for its fibers.
class FiberStore final : public Store {
 public:
  FiberStore(Simulation& simulation, StoreHost& host, int peer)
      : simulation_(simulation), host_(host), peer_(peer) {}

  void set(std::string_view key, std::string_view value) override {
    call({.kind = Ask::set, .key = key, .value = value});
  }
  std::optional<std::string> find(std::string_view key) override {
    const auto answer = call({.kind = Ask::find, .key = key});
    return answer.kind == Kind::value ? std::optional(*answer.bytes) : std::nullopt;
  }
  std::string wait(std::string_view key, Deadline deadline) override {
    const auto value = std::make_shared<std::optional<std::shared_ptr<const std::string>>>();
    const auto limit = std::chrono::ceil<milliseconds>(
        std::min<Duration>(deadline - simulation_.now(), std::chrono::hours(10)));
    host_.wait(
        peer_, std::string(key), std::max(limit, milliseconds(0)),
        [&simulation = simulation_, value, task = &simulation_.current()](const auto& bytes) {
          *value = bytes;
          simulation.wake(*task);
        });
    while (!*value) simulation_.await(no_deadline);
    if (**value == nullptr) throw Error(Fault::timeout, fmt::format("nobody set {}", key));
    return ***value;
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return call({.kind = Ask::add, .key = key, .amount = amount}).number;
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return *call({.kind = Ask::compare_set, .key = key, .value = desired, .expected = expected})
                .bytes;
  }
  bool erase(std::string_view key) override {
    return call({.kind = Ask::erase, .key = key}).kind == Kind::done;
  }

 private:
  StoreHost::Answer call(const job::StoreRequest& request) {
    const auto answer = std::make_shared<std::optional<StoreHost::Answer>>();
    host_.ask(peer_, request,
              [&simulation = simulation_, answer,
               task = &simulation_.current()](const StoreHost::Answer& reply) {
                *answer = reply;
                simulation.wake(*task);
              });
    while (!*answer) simulation_.await(no_deadline);
    return **answer;
  }

  Simulation& simulation_;
  StoreHost& host_;
  const int peer_;
};

class FiberRuntime final : public comm::ElasticRuntime {
 public:
  FiberRuntime(Simulation& simulation, SharedGroups& groups, Process& process)
      : simulation_(simulation), groups_(groups), process_(process) {}

  Clock::time_point now() override { return simulation_.now(); }
  void sleep_for(milliseconds time) override { simulation_.sleep(time); }
  std::function<void()> start(std::function<void()> body) override {
    Task& task = simulation_.start_task(std::move(body));
    return [this, &task] { simulation_.join(task); };
  }
  ProcessGroup make_group(const InitOptions& options, milliseconds call_timeout) override {
    return groups_.make(process_, options, call_timeout);
  }
  void keep_preemption_signals() override {}
  bool preemption_signalled() override { return false; }

 private:
  Simulation& simulation_;
  SharedGroups& groups_;
  Process& process_;
};

// All ranks agree, make the group, and agree again when `goes_on` is set.
struct Ranks {
  Simulation simulation{1};
  SharedGroups groups{simulation, Mutant::none};
  int agreed = 0;
  int formed = 0;
  int again = 0;
  bool goes_on = false;
  Time last = {};
  std::string error = {};
};

void live(Ranks& all, StoreHost& store, Process& process, int ranks) {
  FiberRuntime runtime(all.simulation, all.groups, process);
  ElasticOptions options;
  options.init.environment = LaunchEnvironment{.launcher = "a simulation",
                                               .rank = process.seat.rank,
                                               .world_size = ranks,
                                               .local_world_size = 0,
                                               .job_id = {},
                                               .agent_fd = {}};
  options.init.store = std::make_shared<FiberStore>(all.simulation, store, process.seat.rank);
  options.incarnation = 0;
  ElasticGroup group(options, runtime);
  group.agree({});
  ++all.agreed;
  all.last = all.simulation.now();
  group.form();
  ++all.formed;
  while (!all.goes_on) all.simulation.sleep(milliseconds(1));
  group.agree({.completed = 1000, .prepared = 1000});
  ++all.again;
  all.last = all.simulation.now();
  while (true) all.simulation.sleep(std::chrono::hours(1));
}

// The first agreement of measure_survivors(). Memory grows with the square of the ranks.
std::vector<ScaleEvent> measure_elastic_groups(const ScaleOptions& options) {
  const int ranks = options.hosts * options.ranks;
  const int lost = hosts_of_rack(options.hosts) * options.ranks;
  Ranks all;
  Simulation& simulation = all.simulation;
  Cpu cpu(1);
  StoreHost store(simulation, options.costs, {.cpu = cpu});
  int connected = 0;
  for (int rank = 0; rank < ranks; ++rank) store.connect(rank, [&] { ++connected; });
  Time time = simulation.now();
  const auto run_until = [&](const auto& done) {
    const Time limit = time + options.limit;
    while (!done() && time < limit) simulation.run(time += milliseconds(1));
    return done();
  };
  std::vector<ScaleEvent> events;
  const auto record = [&](std::string name, const int& count, int expected) {
    const Traffic before = store.traffic();
    const Time begin = time;
    const bool is_done = run_until([&] { return count == expected; });
    events.push_back({.name = std::move(name),
                      .seconds = std::nullopt,
                      .traffic = store.traffic().since(before)});
    if (is_done) events.back().seconds = std::chrono::duration<double>(all.last - begin).count();
  };

  run_until([&] { return connected == ranks; });
  const auto body = [&](Process& process) {
    try {
      live(all, store, process, ranks);
    } catch (const Error& error) {
      all.error = error.what();
    }
  };
  simulation.at(time, [&] {
    for (int rank = 0; rank < ranks; ++rank)
      simulation.start_process({rank, 0}, rank / options.ranks, body);
  });
  run_until([&] { return all.agreed == ranks; });
  run_until([&] { return all.formed == ranks; });
  for (int rank = ranks - lost; rank < ranks; ++rank) {
    Process& process = *simulation.processes()[static_cast<std::size_t>(rank)];
    simulation.kill(process);
    all.groups.note_death(process);
  }
  simulation.run(time += milliseconds(300));  // All have detected it.
  all.goes_on = true;
  record("without the rack", all.again, ranks - lost);
  if (!events.empty()) events.back().note = all.error;
  simulation.unwind_all();
  return events;
}

// Their numbers of requests depend on times, and are not equal.
int compare(int hosts, int ranks) {
  const ScaleOptions options{.hosts = hosts, .ranks = ranks};
  const auto model = measure_survivors(options);
  const auto production = measure_elastic_groups(options);
  int differing = 0;
  for (std::size_t i = 0; i < production.size(); ++i) {
    const auto& [ours, real] = std::pair(model.at(i), production[i]);
    const double messages = static_cast<double>(ours.traffic.messages_in) /
                            static_cast<double>(real.traffic.messages_in);
    const double times = ours.seconds.value_or(0) / real.seconds.value_or(1);
    const auto is_near = [](double ratio) { return ratio > 1 / 1.5 && ratio < 1.5; };
    if (!is_near(messages) || !is_near(times) || !real.note.empty()) ++differing;
    fmt::print("{} hosts, {}: {} messages in {:.6f} s; ElasticGroups {} in {:.6f} s {}\n", hosts,
               ours.name, ours.traffic.messages_in, ours.seconds.value_or(0),
               real.traffic.messages_in, real.seconds.value_or(0), real.note);
  }
  return differing;
}

}  // namespace
}  // namespace lockstep::simulation

int main() {
  using lockstep::simulation::compare;
  try {
    return compare(2, 4) + compare(8, 4) + compare(16, 8) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "compare_survivors: {}\n", error.what());
    return lockstep::exit_bug;
  }
}
