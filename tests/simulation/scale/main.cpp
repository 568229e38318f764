// Simulates the start and the changes of large jobs: docs/internals/simulation.md.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "tests/simulation/scale/check.h"
#include "tests/simulation/scale/scale.h"

namespace lockstep::simulation {
namespace {

constexpr const char* footer = R"(Examples:
  simulate_scale --hosts 1000                  a job of 1000 hosts with 8 ranks each
  simulate_scale --hosts 128 --cost link_send=4000
  simulate_scale --hosts 128 --one-machine 2   predicts bench_rendezvous on two cores
  simulate_scale --check                       checks small jobs, and that 1000 hosts start

Each line has: the event; virtual seconds, or "-" if it did not end within --limit; messages and
bytes into and out of the coordinator's host; connections there; seconds of this program; a note.)";

std::vector<ScaleEvent> measure(const std::string& part, const ScaleOptions& options) {
  if (part == "launchers") return measure_launchers(options);
  if (part == "ranks") return measure_ranks(options);
  if (part == "survivors") return measure_survivors(options);
  return predict_tree(options);
}

void print(const std::vector<ScaleEvent>& events) {
  for (const ScaleEvent& event : events)
    fmt::print("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.3f}\t{}\n", event.name,
               event.seconds ? fmt::format("{:.6f}", *event.seconds) : "-",
               event.traffic.messages_in, event.traffic.messages_out, event.traffic.bytes_in,
               event.traffic.bytes_out, event.connections, event.real_seconds, event.note);
  std::fflush(stdout);
}

int run_program(int argc, char** argv) {
  ScaleOptions options;
  std::vector<std::string> costs;
  std::vector<std::string> parts{"launchers", "ranks", "survivors", "tree"};
  long long limit = options.limit.count();
  int cores = 0;
  bool checks = false;
  CLI::App app("Simulates the start and the changes of a job on many hosts.");
  app.footer(footer);
  app.add_option("--hosts", options.hosts, "How many")
      ->check(CLI::Range(1, 50'000))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks, "On each host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--cost", costs, "NAME=NANOSECONDS, as scale_costs prints them: costs.h");
  app.add_option("--parts", parts, "Any of: launchers ranks survivors tree")
      ->check(CLI::IsMember({"launchers", "ranks", "survivors", "tree"}));
  app.add_option("--limit", limit, "Virtual seconds after which an event has failed")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--one-machine", cores, "Predict bench_rendezvous with this many cores")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--check", checks, "Check small jobs against the documented counts");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  options.limit = std::chrono::seconds(limit);
  for (const std::string& cost : costs)
    if (!options.costs.set(cost)) {
      fmt::print(stderr, "--cost {}: unknown, or no number\n", cost);
      return exit_usage;
    }
  set_log_sink([](LogLevel, std::string_view) {});
  if (checks) return check_scale();
  if (cores > 0) {
    const auto [agents, ranks] = predict_rendezvous(options, cores);
    fmt::print("agents_ms {:.2f}\nranks_ms {:.2f}\n", agents, ranks);
    return 0;
  }
  for (const std::string& part : parts) print(measure(part, options));
  return 0;
}

}  // namespace
}  // namespace lockstep::simulation

int main(int argc, char** argv) {
  try {
    return lockstep::simulation::run_program(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "simulate_scale: {}\n", error.what());
    return lockstep::exit_bug;
  }
}
