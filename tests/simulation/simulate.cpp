// Simulates jobs with Survival's production code: docs/internals/simulation.md.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/job/host_session.h"
#include "tests/simulation/job.h"
#include "tests/simulation/launcher_job.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/plan.h"

namespace lockstep::simulation {
namespace {

constexpr int exit_violation = 1;

constexpr const char* footer = R"(Examples:
  simulate --seeds 1000                    runs the seeds 1 to 1000
  simulate --seed 4711 --trace             prints every event of one run
  simulate --seed 4711 --minimize          finds the faults that are necessary for a violation
  simulate --seeds 100 --processes 64      more processes
  simulate --seeds 5000 --mutant vote_is_lost   looks for a planted defect
  simulate --mutants --seeds 5000          the same for all planted defects
  simulate --launcher --seeds 10000        jobs of the launcher's Coordinator

Exit codes: 0: no violation; with --mutants, all were found. 1: a violation, or a mutant that was
not found. 64: wrong use.)";

struct Options {
  std::optional<std::uint64_t> seed;
  std::uint64_t seeds = 100;
  std::uint64_t first = 1;
  std::optional<int> processes;
  std::string mutant;
  bool traces = false;
  bool minimizes = false;
  bool tries_mutants = false;
  bool is_launcher = false;
};

struct Totals {
  std::uint64_t runs = 0;
  std::uint64_t events = 0;
  std::uint64_t requests = 0;
  std::uint64_t faults = 0;
  std::uint64_t generations = 0;
  std::uint64_t finished = 0;

  void add(const Result& result) {
    ++runs;
    events += result.events;
    requests += result.requests;
    faults += static_cast<std::uint64_t>(result.faults);
    generations += static_cast<std::uint64_t>(result.generations);
    finished += result.finished > 0 ? 1 : 0;
  }
};

void print_violation(std::uint64_t seed, const Violation& violation) {
  fmt::print("seed {}: violation of '{}': {}\n", seed, violation.rule, violation.text);
}

void print_faults(const Plan& plan) {
  for (const PlannedFault& fault : plan.faults) fmt::print("  {}\n", describe(fault));
}

Simulation::Trace printed_trace() {
  return [](Time time, const std::string& line) {
    const auto since = time - begin_of_time;
    fmt::print("{:12.6f}  {}\n", std::chrono::duration<double>(since).count(), line);
  };
}

// Removes faults one by one while the same rule is violated.
Plan minimized(Plan plan, Mutant mutant, const std::string& rule) {
  for (std::size_t i = 0; i < plan.faults.size();) {
    Plan smaller = plan;
    smaller.faults.erase(smaller.faults.begin() + static_cast<std::ptrdiff_t>(i));
    const auto violation = run(smaller, mutant, nullptr).violation;
    if (violation && violation->rule == rule)
      plan = std::move(smaller);
    else
      ++i;
  }
  return plan;
}

int run_one(const Options& options, Mutant mutant) {
  Plan plan = draw_plan(*options.seed, options.processes);
  fmt::print("{}\n", describe(plan));
  print_faults(plan);
  const bool traces_first = options.traces && !options.minimizes;
  Result result = run(plan, mutant, traces_first ? printed_trace() : nullptr);
  if (result.violation && options.minimizes) {
    plan = minimized(plan, mutant, result.violation->rule);
    fmt::print("{} faults are necessary:\n", plan.faults.size());
    print_faults(plan);
    result = run(plan, mutant, options.traces ? printed_trace() : nullptr);
  }
  fmt::print(
      "{} events, {} requests to the store, {} generations, {} processes, {} of which finished, in "
      "{:.3f} virtual seconds\n",
      result.events, result.requests, result.generations, result.started, result.finished,
      result.virtual_seconds);
  if (result.violation) print_violation(plan.seed, *result.violation);
  return result.violation ? exit_violation : 0;
}

void print_progress(std::uint64_t done, std::uint64_t all, const Totals& totals) {
  if (::isatty(STDERR_FILENO) == 0 || done % 100 != 0) return;
  fmt::print(stderr, "\r{} of {} seeds, {} events", done, all, totals.events);
  if (done == all) fmt::print(stderr, "\n");
}

// Returns the first seed with a violation.
std::optional<std::uint64_t> run_many(const Options& options, Mutant mutant, Totals& totals,
                                      std::optional<Violation>& violation) {
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    const Plan plan = draw_plan(options.first + i, options.processes);
    const Result result = run(plan, mutant, nullptr);
    totals.add(result);
    print_progress(i + 1, options.seeds, totals);
    if (!result.violation) continue;
    violation = result.violation;
    return plan.seed;
  }
  return std::nullopt;
}

int run_seeds(const Options& options, Mutant mutant) {
  Totals totals;
  std::optional<Violation> violation;
  const auto begun = std::chrono::steady_clock::now();
  const auto seed = run_many(options, mutant, totals, violation);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
  fmt::print(
      "{} seeds, {} events, {} requests to the store, {} faults, {} generations, {} jobs finished, "
      "{:.0f} events/s\n",
      totals.runs, totals.events, totals.requests, totals.faults, totals.generations,
      totals.finished, static_cast<double>(totals.events) / time.count());
  if (!seed) return 0;
  print_violation(*seed, *violation);
  fmt::print("Replay it with --seed {} --trace, or shorten it with --minimize.\n", *seed);
  return exit_violation;
}

int run_mutants(const Options& options) {
  int missed = 0;
  for (const NamedMutant& named : mutants()) {
    Totals totals;
    std::optional<Violation> violation;
    const auto seed = run_many(options, named.mutant, totals, violation);
    if (seed)
      fmt::print("{}: found by seed {}: '{}': {}\n", named.name, *seed, violation->rule,
                 violation->text);
    else
      fmt::print("{}: NOT found by {} seeds\n", named.name, totals.runs);
    missed += seed ? 0 : 1;
  }
  fmt::print("{} mutants, {} not found\n", mutants().size(), missed);
  return missed == 0 ? 0 : exit_violation;
}

int run_launchers(const Options& options) {
  LauncherResult sum;
  std::uint64_t succeeded = 0;
  const std::uint64_t first = options.seed.value_or(options.first);
  const std::uint64_t seeds = options.seed ? 1 : options.seeds;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const auto trace = options.traces ? printed_trace() : nullptr;
    const LauncherResult result = run_launcher(first + i, options.processes, trace);
    sum.events += result.events;
    sum.attempts += result.attempts;
    sum.orders += result.orders;
    succeeded += result.succeeded ? 1 : 0;
    if (!result.violation) continue;
    print_violation(first + i, *result.violation);
    return exit_violation;
  }
  fmt::print("{} jobs of the launcher, {} events, {} attempts, {} orders, {} jobs succeeded\n",
             seeds, sum.events, sum.attempts, sum.orders, succeeded);
  return 0;
}

// ProcessGroup::on_preemption() sets handlers, and this program still ends by SIGTERM.
void keep_own_signals() {
  keep_preemption_signals();
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
}

int run_program(int argc, char** argv) {
  Options options;
  CLI::App app("Runs Survival's production code on virtual time and a virtual network.");
  app.footer(footer);
  app.add_option("--seed", options.seed, "Run this seed alone");
  app.add_option("--seeds", options.seeds, "Number of seeds to run")->capture_default_str();
  app.add_option("--first", options.first, "The first of them")->capture_default_str();
  app.add_option("--processes", options.processes, "Ranks; by default, drawn from the seed")
      ->check(CLI::Range(2, 100'000));
  app.add_flag("--trace", options.traces, "Print every event, with its virtual time in seconds");
  app.add_flag("--minimize", options.minimizes, "Remove faults that a violation does not need");
  app.add_option("--mutant", options.mutant, "Plant a defect: see mutants.h");
  app.add_flag("--launcher", options.is_launcher,
               "Simulate the launcher's Coordinator instead; --processes is the number of hosts");
  app.add_flag("--mutants", options.tries_mutants, "Look for each planted defect");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  Mutant mutant = Mutant::none;
  if (!options.mutant.empty()) {
    const auto found = mutant_named(options.mutant);
    if (!found) {
      fmt::print(stderr, "--mutant: there is no {}; there are\n", options.mutant);
      for (const NamedMutant& named : mutants()) fmt::print(stderr, "  {}\n", named.name);
      return exit_usage;
    }
    mutant = *found;
  }
  if ((options.traces || options.minimizes) && !options.seed) {
    fmt::print(stderr, "--trace and --minimize need --seed\n");
    return exit_usage;
  }
  keep_own_signals();
  set_log_sink([](LogLevel, std::string_view) {});
  if (options.is_launcher) return run_launchers(options);
  if (options.tries_mutants) return run_mutants(options);
  return options.seed ? run_one(options, mutant) : run_seeds(options, mutant);
}

}  // namespace
}  // namespace lockstep::simulation

int main(int argc, char** argv) {
  try {
    return lockstep::simulation::run_program(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "simulate: {}\n", error.what());
    return lockstep::exit_bug;
  }
}
