// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tests/simulation/training.h"

namespace lockstep::simulation {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t stream_of_launcher = 1'000'000;
constexpr std::uint64_t stream_of_hosts = 1'000'001;

// After the last step, so that the entries of earlier generations can be erased.
constexpr milliseconds rest{3000};

}  // namespace

Result run(const Plan& plan, Mutant mutant, const Simulation::Trace& trace) {
  return Job(plan, mutant, trace).run();
}

Job::Job(const Plan& plan, Mutant mutant, const Simulation::Trace& trace)
    : plan_(plan),
      per_host_((plan.processes + plan.hosts - 1) / plan.hosts),
      mutant_(mutant),
      simulation_(plan.seed),
      server_(simulation_, mutant),
      groups_(simulation_, mutant),
      checker_(simulation_, server_),
      launcher_(plan.seed, stream_of_launcher) {
  simulation_.set_trace(trace);
  Random hosts(plan.seed, stream_of_hosts);
  for (int host = 0; host < plan_.hosts; ++host)
    server_.add_host(std::chrono::microseconds(hosts.between(20, 400)));
  RunOptions options;
  options.nproc_per_node = per_host_;
  options.max_replacements = plan_.most_restarts * per_host_;
  options.max_restart_delay = plan_.longest_restart;
  for (int host = 0; host < plan_.hosts; ++host) hosts_.emplace_back(options, simulation_.now());
  server_.set_on_change([this](const Process& by, const job::StoreRequest& request) {
    checker_.store_changed(by, request);
  });
  simulation_.set_hook([this](Process& process, std::string_view what, std::string_view key) {
    note_call(process, what, key);
  });
  simulation_.set_on_end([this](Process& process) { note_end(process); });
}

// --- Processes -----------------------------------------------------------------------------------

Process* Job::process_of(int rank) const {
  const auto found = latest_.find(rank);
  return found == latest_.end() ? nullptr : found->second;
}

void Job::start(Seat seat, int host) {
  simulation_.trace(fmt::format("{} starts on host {}", comm::text_of(seat), host));
  Process& process = simulation_.start_process(seat, host, [this](Process& self) { live(self); });
  latest_[seat.rank] = &process;
  if (touched_hosts_.contains(host)) hinder(process);
}

void Job::live(Process& process) {
  SimulatedRuntime runtime(simulation_, groups_, process);
  Training training(simulation_, groups_, checker_, process, plan_.longest_compute,
                    mutant_ == Mutant::state_is_old);
  try {
    ElasticOptions options;
    options.init.timeout = plan_.timeout;
    options.init.environment = LaunchEnvironment{.launcher = "a simulation",
                                                 .rank = process.seat.rank,
                                                 .world_size = plan_.processes,
                                                 .local_world_size = 0,
                                                 .job_id = {},
                                                 .agent_fd = {}};
    options.init.store =
        std::make_shared<SimulatedStore>(simulation_, server_, process, plan_.timeout);
    options.patience = plan_.patience;
    options.least = plan_.least;
    options.incarnation = process.seat.incarnation;
    ElasticSteps steps(training, options, runtime);
    steps.begin();
    while (!steps.has_left() && steps.steps() < plan_.steps) {
      if (steps.steps() != training.steps())
        checker_.report("steps are counted",
                        fmt::format("{} has applied {} steps and counts {}", name_of(process),
                                    training.steps(), steps.steps()));
      steps.step([&] { training.compute(); }, [&] { training.apply(); });
    }
    if (steps.has_left()) {
      process.outcome = "left";
    } else {
      simulation_.sleep(rest);
      if (!touched_.contains(process.id) && !server_.has_ended())
        checker_.check_keys(process, rest, touched_);
      simulation_.point("finishes");
      steps.finish();
      simulation_.point("has finished");
      process.outcome = "finished";
    }
  } catch (const Error& error) {
    process.outcome = fmt::format("{}: {}", name(error.fault()), bare_text(error));
  } catch (const std::exception& error) {
    process.outcome = fmt::format("exception: {}", error.what());
  }
}

int Job::running_on(int host) const {
  return static_cast<int>(std::ranges::count_if(latest_, [&](const auto& entry) {
    return host_of(entry.first) == host && entry.second->is_alive;
  }));
}

// As the agent of the process's host.
void Job::note_end(Process& process) {
  simulation_.trace(fmt::format("{} ended: {}", name_of(process), process.outcome));
  checker_.ended(process);
  if (process.died_with_host)
    server_.lose_connection(process.id);
  else
    server_.close_connection(process.id);
  if (process.was_killed) groups_.note_death(process);
  const bool has_finished = process.outcome == "finished";
  finished_ += has_finished ? 1 : 0;
  if (process.died_with_host || server_.has_ended()) return;
  launch::Continuation& continuation = hosts_[static_cast<std::size_t>(process.host)];
  if (has_finished)
    continuation.succeed(simulation_.now());
  else if (process.outcome == "left")
    continuation.leave();
  else
    continuation.lose(process.seat.rank % per_host_, {.rank = process.seat.rank}, name_of(process),
                      running_on(process.host), simulation_.now());
  supervise(process.host);
}

// Starts ranks that are due, and ends those that are stopped when others have finished.
void Job::supervise(int host) {
  if (dead_hosts_.contains(host) || server_.has_ended()) return;
  launch::Continuation& continuation = hosts_[static_cast<std::size_t>(host)];
  const Time now = simulation_.now();
  while (const auto local = continuation.take_due(now))
    start({host * per_host_ + *local, continuation.incarnation(*local)}, host);
  const bool looks = continuation.looks_for_stopped(now);
  for (int local = 0; looks && local < per_host_; ++local) {
    Process* const process = process_of(host * per_host_ + local);
    if (process == nullptr || !process->is_alive) continue;
    if (continuation.is_stuck(local, now < process->stopped_until, now)) simulation_.kill(*process);
  }
  const Time next = continuation.deadline();
  if (next == no_deadline || (running_on(host) == 0 && continuation.waiting() == 0)) return;
  simulation_.at(std::max(next, now + milliseconds(1)), [this, host] { supervise(host); });
}

// --- Faults --------------------------------------------------------------------------------------

void Job::touch_host(int host) {
  touched_hosts_.insert(host);
  for (const auto& process : simulation_.processes())
    if (process->host == host) hinder(*process);
}

void Job::hinder(const Process& process) {
  touch(process);
  checker_.note_hindered(process);
}

void Job::note_call(Process& process, std::string_view what, std::string_view key) {
  for (Watched& watched : watched_) {
    const PlannedFault& fault = watched.fault;
    if (watched.has_happened || what != fault.call || !key.starts_with(fault.key)) continue;
    const bool is_of_rank = !is_of_host(fault.kind) && fault.kind != FaultKind::end_store;
    if (is_of_rank && process.seat.rank != fault.target) continue;
    if (++watched.calls < fault.count) continue;
    watched.has_happened = true;
    if (fault.delay.count() > 0)
      simulation_.after(fault.delay, [this, fault] { inject(fault); });
    else
      inject(fault);
  }
}

void Job::inject_into_host(const PlannedFault& fault) {
  Link& link = server_.link(fault.target);
  const Time until = simulation_.now() + fault.length;
  if (fault.kind == FaultKind::cut_to_store || fault.kind == FaultKind::cut_store)
    link.to_store_cut_until = std::max(link.to_store_cut_until, until);
  if (fault.kind == FaultKind::cut_from_store || fault.kind == FaultKind::cut_store)
    link.from_store_cut_until = std::max(link.from_store_cut_until, until);
  if (fault.kind == FaultKind::slow_link) {
    link.slow_until = until;
    link.slowness = 50;
  }
  touch_host(fault.target);
  if (fault.kind != FaultKind::kill_host) return;
  dead_hosts_.insert(fault.target);
  Process* self = nullptr;  // Last: it is left by an exception.
  const auto count = simulation_.processes().size();
  for (std::size_t i = 0; i < count; ++i) {
    Process& process = *simulation_.processes()[i];
    if (process.host != fault.target) continue;
    if (simulation_.is_in_fiber() && &simulation_.current().process() == &process)
      self = &process;
    else
      simulation_.kill(process, true);
  }
  if (self != nullptr) simulation_.kill(*self, true);
}

void Job::inject(const PlannedFault& fault) {
  ++faults_;
  simulation_.trace("fault: " + describe(fault));
  if (fault.kind == FaultKind::end_store) {
    server_.end();
    return;
  }
  if (is_of_host(fault.kind)) return inject_into_host(fault);
  Process* const process = process_of(fault.target);
  if (process == nullptr || !process->is_alive) return;
  touch(*process);
  if (fault.kind != FaultKind::lose_peer_connection) checker_.note_hindered(*process);
  if (fault.kind == FaultKind::stop) simulation_.stop(*process, simulation_.now() + fault.length);
  if (fault.kind == FaultKind::slow_process) process->slowness = 5;
  if (fault.kind == FaultKind::leave) process->is_told_to_leave = true;
  if (fault.kind == FaultKind::lose_store_connection) server_.lose_connection(process->id);
  if (fault.kind == FaultKind::lose_peer_connection) {
    const Process* const other = process_of(fault.other);
    if (other == nullptr || other == process) return;
    touch(*other);
    groups_.lose_connection(*process, *other);
  }
  if (fault.kind == FaultKind::kill) simulation_.kill(*process);  // May throw.
}

// --- The run -------------------------------------------------------------------------------------

// Each fault may cost the time until the others go on without a rank, or until a group is not made.
// A restart may wait to join.
Time Job::limit() const {
  milliseconds time = plan_.timeout * (3 + plan_.most_restarts * per_host_) + milliseconds(200'000);
  for (const PlannedFault& fault : plan_.faults)
    time += fault.length + fault.time + plan_.patience * 4 + milliseconds(30'000);
  return simulation_.now() + time;
}

// A process that no fault has reached, of the first group, trains to the end.
void Job::check_progress() {
  if (checker_.violation()) return;
  if (simulation_.living() > 0)
    return checker_.report("a run ends in time",
                           fmt::format("{} processes still run", simulation_.living()));
  if (server_.has_ended() || checker_.decisions().empty()) return;
  for (const auto& process : simulation_.processes()) {
    const auto& first = checker_.decisions().begin()->second;
    if (touched_.contains(process->id) || process->outcome == "finished") continue;
    if (!comm::place_of(process->seat, first.members)) continue;
    const bool is_small = process->outcome.find("are required to continue") != std::string::npos;
    if (plan_.least > 1 && is_small) continue;
    checker_.report("ranks without faults finish",
                    fmt::format("{} ended: {}", name_of(*process), process->outcome));
  }
}

Result Job::run() {
  for (const PlannedFault& fault : plan_.faults) {
    if (fault.is_timed)
      simulation_.after(fault.time, [this, fault] { inject(fault); });
    else
      watched_.push_back({fault});
  }
  for (int rank = 0; rank < plan_.processes; ++rank) {
    const milliseconds pause(launcher_.between(0, 100));
    simulation_.after(pause, [this, rank] {
      if (!dead_hosts_.contains(host_of(rank))) start({rank, 0}, host_of(rank));
    });
  }
  simulation_.run(limit());
  check_progress();
  simulation_.unwind_all();
  return {
      .violation = checker_.violation(),
      .events = simulation_.events(),
      .requests = server_.requests(),
      .applications = checker_.applications(),
      .generations = static_cast<int>(checker_.decisions().size()),
      .started = static_cast<int>(simulation_.processes().size()),
      .finished = finished_,
      .faults = faults_,
      .virtual_seconds = std::chrono::duration<double>(simulation_.now() - begin_of_time).count()};
}

}  // namespace lockstep::simulation
