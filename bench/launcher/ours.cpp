// Lockstep's side of bench.py: ranks report the start and end of init_process_group(), and when
// they detect a killed rank, in nanoseconds of CLOCK_MONOTONIC.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

long long now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// One write() per line, so that ranks do not mix lines.
void say(const char* what, long long nanoseconds) {
  char line[64];
  const int length = std::snprintf(line, sizeof line, "%s %lld\n", what, nanoseconds);
  [[maybe_unused]] const auto written =
      ::write(STDOUT_FILENO, line, static_cast<std::size_t>(length));
}

void init() {
  const long long begin = now();
  auto world = lockstep::init_process_group();
  const long long end = now();
  say("begin", begin);
  say("end", end);
  lockstep::destroy_process_group(world);
}

// Kills rank 1, after it has allocated `gb`, while the others are in collectives.
int lose_a_rank(double gb) {
  constexpr int steps = 1000;
  auto world = lockstep::init_process_group();
  const auto bytes = static_cast<std::size_t>(gb * 1e9);
  std::unique_ptr<char[]> ballast;
  if (world.rank() == 1 && bytes > 0) {
    ballast = std::make_unique_for_overwrite<char[]>(bytes);
    std::memset(ballast.get(), 1, bytes);
  }
  std::vector<float> values(1 << 16, 1.0F);
  try {
    for (int step = 0;; ++step) {
      world.all_reduce(lockstep::buffer_of(values), lockstep::ReduceOp::max);
      if (world.rank() == 1 && step == steps) {
        say("killed", now());
        ::kill(::getpid(), SIGKILL);
      }
    }
  } catch (const lockstep::Error& error) {
    say("error", now());
    const auto& failure = error.failure();
    const bool named = failure && failure->rank == 1 && failure->signal == SIGKILL;
    if (!named) std::fprintf(stderr, "%s\n", error.what());
    return named ? 3 : 4;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lockstep's side of bench.py");
  app.require_subcommand(1);
  double gb = 0;
  app.add_subcommand("init", "say when init_process_group() begins and ends");
  CLI::App* kill = app.add_subcommand("kill", "say when a rank is killed, and when others know");
  kill->add_option("--gb", gb, "Memory of the rank, in GB")->check(CLI::Range(0.0, 1000.0));
  CLI11_PARSE(app, argc, argv);
  if (kill->parsed()) return lose_a_rank(gb);
  init();
  return 0;
}
