// SPDX-License-Identifier: Apache-2.0
#include "tests/hosts/rank_of_hosts.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/environment.h"
#include "tests/hosts/world_checks.h"

namespace lockstep::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int exit_wrong_result = 2;
constexpr int first_fault_code = 10;
constexpr std::uint64_t steps_under_way = 5;

struct Settings {
  std::uint64_t steps = 10;
  std::string until = {};  // A file, or empty.
  bool until_preempted = false;
  std::optional<std::chrono::milliseconds> step_timeout = {};  // From step steps_under_way on.
};

struct Progress {
  int rank = -1;  // Unknown before the group exists.
  std::uint64_t steps = 0;
  Clock::time_point last = Clock::now();
};

// A single write() keeps the lines of several ranks intact in one file.
void say(const Progress& progress, const std::string& event, const std::string& rest = "") {
  const std::string line = event + " rank=" + std::to_string(progress.rank) + rest + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

Settings read_settings(int argc, char** argv, InitOptions& options) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--until-preempted") {
      settings.until_preempted = true;
      continue;
    }
    if (option == "--ignore-sigterm") {
      ::signal(SIGTERM, SIG_IGN);
      continue;
    }
    if (++i == argc) throw std::invalid_argument(std::string(option) + " needs a value");
    if (option == "--steps")
      settings.steps = std::stoull(argv[i]);
    else if (option == "--until")
      settings.until = argv[i];
    else if (option == "--timeout")
      options.timeout = std::chrono::seconds(std::stoi(argv[i]));
    else if (option == "--step-timeout")
      settings.step_timeout = std::chrono::seconds(std::stoi(argv[i]));
    else
      throw std::invalid_argument("unknown: " + std::string(option));
  }
  if (settings.until_preempted || !settings.until.empty())
    settings.steps = std::numeric_limits<std::uint64_t>::max();
  return settings;
}

// Returns whether all ranks continue. The first element requests the end, the others are 1 on each
// rank.
bool reduce_once(const ProcessGroup& world, bool is_last, const CallOptions& options) {
  std::vector<float> values(1000, 1.0F);
  values[0] = is_last ? 1.0F : 0.0F;
  world.all_reduce(buffer_of(values), ReduceOp::sum, options);
  const auto wanted = static_cast<float>(world.size());
  const auto is_right = [&](float value) { return value == wanted; };
  if (!std::all_of(values.begin() + 1, values.end(), is_right))
    throw std::logic_error("all_reduce of a step: a wrong sum");
  return values[0] == 0.0F;
}

int take_steps(const ProcessGroup& world, const Settings& settings, Progress& progress) {
  bool goes_on = true;
  while (goes_on && progress.steps < settings.steps) {
    CallOptions options;
    if (progress.steps >= steps_under_way) options.timeout = settings.step_timeout;
    const bool is_last = !settings.until.empty() && std::filesystem::exists(settings.until);
    goes_on = reduce_once(world, is_last, options);
    ++progress.steps;
    progress.last = Clock::now();
    if (progress.steps == steps_under_way) say(progress, "stepped");
    if (settings.until_preempted && world.preempted()) {
      say(progress, "preempted", " step=" + std::to_string(progress.steps));
      return exit_preempted;
    }
  }
  return 0;
}

int live(const Settings& settings, const InitOptions& options, Progress& progress) {
  ProcessGroup world = init_process_group(options);
  progress.rank = world.rank();
  say(progress, "joined",
      " size=" + std::to_string(world.size()) + " backend=" + world.backend() + " local_rank=" +
          std::to_string(world.local_rank()) + " local_size=" + std::to_string(world.local_size()) +
          " pid=" + std::to_string(::getpid()) +
          " attempt=" + std::to_string(read_environment().attempt));
  check_world(world);
  say(progress, "checked");
  if (settings.until_preempted) world.on_preemption();
  world.barrier();
  progress.last = Clock::now();
  say(progress, "stepping");
  const int code = take_steps(world, settings, progress);
  destroy_process_group(world);
  say(progress, "bye", " steps=" + std::to_string(progress.steps));
  return code;
}

void say_error(const Error& error, const Progress& progress) {
  const auto now = Clock::now();
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const int lost = error.failure() ? error.failure()->rank : -1;
  say(progress, "error",
      " fault=" + std::string(name(error.fault())) + " lost=" + std::to_string(lost) +
          " at=" + std::to_string(Seconds(now.time_since_epoch()).count()) +
          " step=" + std::to_string(progress.steps) +
          " since=" + std::to_string(Seconds(now - progress.last).count()) + " text=" + text);
}

}  // namespace

int rank_of_hosts(int argc, char** argv, InitOptions options) {
  Progress progress;
  try {
    const Settings settings = read_settings(argc, argv, options);
    return live(settings, options, progress);
  } catch (const Error& error) {
    say_error(error, progress);
    return first_fault_code + static_cast<int>(error.fault());
  } catch (const std::logic_error& error) {
    say(progress, "wrong", " text=" + std::string(error.what()));
    return exit_wrong_result;
  } catch (const std::exception& error) {
    say(progress, "exception", " text=" + std::string(error.what()));
    return 1;
  }
}

}  // namespace lockstep::test
