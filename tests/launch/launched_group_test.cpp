// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/step_times.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"
#include "tests/rigs/rank_zero_ends.h"

namespace lockstep {
namespace {

using test::Finished;
using test::Rank;
using test::Ranks;

Finished launch(const Ranks& ranks, int world_size,
                std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  std::vector<std::string> arguments{LOCKSTEP_RUN, "-n", std::to_string(world_size)};
  for (const std::string& word : ranks.command()) arguments.push_back(word);
  test::RunningCommand run(arguments);
  const int code = run.wait(limit);
  return {code, run.out(), run.err()};
}

// As launch(), under a limit: `limit` is arguments of a shell's ulimit.
Finished launch_under(const std::string& limit, const Ranks& ranks, int world_size) {
  std::vector<std::string> arguments{"/bin/sh",
                                     "-c",
                                     "ulimit " + limit + " && exec \"$@\"",
                                     "sh",
                                     LOCKSTEP_RUN,
                                     "-n",
                                     std::to_string(world_size)};
  for (const std::string& word : ranks.command()) arguments.push_back(word);
  return test::run_command(arguments);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

const Ranks works("works", [](const Rank& rank) {
  for (int i = 0; i < 3; ++i) {  // A job may create its group again.
    ProcessGroup group = init_process_group();
    EXPECT_EQ(group.rank(), rank.rank);
    EXPECT_EQ(group.size(), rank.world_size);
    const RegisteredMemory memory = group.allocate(4000);
    auto* values = static_cast<float*>(memory.data());
    for (int k = 0; k < 1000; ++k) values[k] = static_cast<float>(k * (rank.rank + 1));
    group.all_reduce({.data = values, .count = 1000});
    const int ranks = rank.world_size * (rank.world_size + 1) / 2;
    for (int k = 0; k < 1000; ++k) ASSERT_EQ(values[k], static_cast<float>(k * ranks));
    destroy_process_group(group);
  }
});

TEST(LaunchedGroup, FormsThroughTheAgentAndReduces) {
  for (const int world_size : {1, 2, 4}) {
    const Finished done = launch(works, world_size);
    EXPECT_EQ(done.code, 0) << done.out << done.err;
  }
}

// Works on the caller's thread, the progress thread and the message thread.
const Ranks works_on_every_thread("works on every thread", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  std::vector<float> values(10'000, 1);
  group.all_reduce({.data = values.data(), .count = values.size()});
  group.all_reduce_async({.data = values.data(), .count = values.size()}).wait();
  EXPECT_EQ(values.back(), static_cast<float>(rank.world_size * rank.world_size));
  const int next = (rank.rank + 1) % rank.world_size;
  const int last = (rank.rank + rank.world_size - 1) % rank.world_size;
  std::vector<float> received(values.size());
  Work sent = group.send_async({.data = values.data(), .count = values.size()}, next);
  group.recv({.data = received.data(), .count = received.size()}, last);
  sent.wait();
  EXPECT_EQ(received, values);
  destroy_process_group(group);
});

// LOCKSTEP_TEST_FOLDER is a folder shared by the ranks.
const Ranks sends_and_ends("sends and ends", [](const Rank&) {
  ProcessGroup world = init_process_group();
  test::expect_messages_outlive_rank_zero(world, std::getenv("LOCKSTEP_TEST_FOLDER"));
});

TEST(LaunchedGroup, KeepsMessagesThatWereSentBeforeTheProcessEnds) {
  const test::ScratchDirectory folder;
  ::setenv("LOCKSTEP_TEST_FOLDER", folder.path().c_str(), 1);
  const Finished done = launch(sends_and_ends, 3);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

TEST(LaunchedGroup, WorksUnderASmallLimitOfStacks) {
  const Finished done = launch_under("-s 64", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

TEST(LaunchedGroup, ALimitOfFileSizesThatIsTooLowForItsMemoryIsAnErrorThatNamesIt) {
  const Finished done = launch_under("-f 100", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 10 + static_cast<int>(Fault::system)) << done.out << done.err;
  EXPECT_TRUE(contains(done.err, "raise `ulimit -f`")) << done.err;
}

TEST(LaunchedGroup, WorksUnderALimitOfFileSizesThatSuffices) {
  const Finished done = launch_under("-f 100000", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int many = 32;  // Each costs several times more there.
#else
constexpr int many = 256;
#endif

const Ranks one_of_many("one of many", [](const Rank& rank) {
  const std::size_t before = ::mallinfo2().uordblks;
  ProcessGroup group = init_process_group();
  const std::size_t kept = ::mallinfo2().uordblks - before;
  EXPECT_LT(kept, (64U << 10) + 512U * static_cast<unsigned>(rank.world_size));
  std::int32_t value = rank.rank;
  group.all_reduce({.data = &value, .count = 1, .dtype = DType::int32});
  EXPECT_EQ(value, rank.world_size * (rank.world_size - 1) / 2);
  destroy_process_group(group);
});

// The memory of all ranks grows with the square of a rank's memory per peer.
TEST(LaunchedGroup, HoldsHundredsOfRanksOfWhichEachKeepsLittleForItsPeers) {
  const Finished done = launch(one_of_many, many, std::chrono::minutes(3));
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

const Ranks one_is_killed("one is killed", [](const Rank& rank) {
  // A survivor that stands still for 0.5 s gets SIGTERM before it names the killed rank.
  ::signal(SIGTERM, SIG_IGN);
  ProcessGroup group = init_process_group();
  for (int i = 0; i < 3; ++i) group.barrier();
  if (rank.rank == 1) ::raise(SIGKILL);
  group.barrier();
});

TEST(LaunchedGroup, AKilledRankIsNamedByEverySurvivorAndByTheLauncher) {
  const Finished done = launch(one_is_killed, 3);
  EXPECT_EQ(done.code, 128 + SIGKILL) << done.err;
  for (const char* survivor : {"[0] ", "[2] "})
    EXPECT_TRUE(contains(done.err, std::string(survivor) + "[rank ")) << done.err;
  EXPECT_TRUE(contains(done.err, "peer_lost")) << done.err;
  EXPECT_TRUE(contains(done.err, "signal 9 (SIGKILL), last seen in barrier #3")) << done.err;
}

const Ranks one_survivor_is_slow("one survivor is slow", [](const Rank& rank) {
  ::signal(SIGTERM, SIG_IGN);
  ProcessGroup group = init_process_group();
  if (rank.rank == 1) ::raise(SIGKILL);
  try {
    group.barrier();
  } catch (const Error&) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // Until the launcher's SIGTERM.
    std::terminate();  // As without this handler, which only waits.
  }
});

TEST(LaunchedGroup, ARankThatThrowsAfterTheLaunchersSigtermHasFailedToo) {
  const Finished done = launch(one_survivor_is_slow, 2);
  EXPECT_EQ(done.code, 128 + SIGKILL) << done.err;
  EXPECT_TRUE(contains(done.err, "; then rank 0 failed too; exit code 137\n")) << done.err;
}

const Ranks one_returns_early("one returns early", [](const Rank& rank) {
  if (rank.rank == 1) return;  // With code 0, and before any rank has created a group.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ProcessGroup group = init_process_group();
});

TEST(LaunchedGroup, ARankThatReturnsBeforeItJoinsIsNamedToThoseWhoWaitForIt) {
  const Finished done = launch(one_returns_early, 2);
  EXPECT_NE(done.code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "peer_lost")) << done.err;
  EXPECT_TRUE(contains(done.err, "lockstep run: caused by rank 1 (pid ")) << done.err;
}

const Ranks one_throws("one throws", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  if (rank.rank == 1) throw std::runtime_error("out of ideas");
  group.barrier();
});

TEST(LaunchedGroup, ARankThatThrowsDecidesTheExitCode) {
  const Finished done = launch(one_throws, 2);
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_TRUE(contains(done.err, "out of ideas")) << done.err;
  EXPECT_TRUE(contains(done.err, "rank 1")) << done.err;
}

// --- Exceptions that nobody catches --------------------------------------------------------------

constexpr const char* no_data = "lockstep::Error: system: there is no dataset";

[[noreturn]] void throw_error() {
  throw Error(Fault::system, "there is no dataset; to do: install one");
}

void throw_uncaught() {
  []() noexcept { throw_error(); }();
}

const Ranks throws_before_the_group("throws before the group",
                                    [](const Rank&) { throw_uncaught(); });

TEST(UncaughtException, BeforeTheGroupIsReportedAsALaterOne) {
  const Finished done = launch(throws_before_the_group, 1);
  EXPECT_EQ(done.code, 128 + SIGABRT) << done.err;
  EXPECT_TRUE(contains(done.err, std::string("rank 0 ended with an exception: ") + no_data))
      << done.err;
  EXPECT_TRUE(contains(done.err, "to do: install one\n")) << done.err;
  EXPECT_EQ(std::ranges::count(done.err, '\n'), 3) << done.err;
}

std::terminate_handler former = nullptr;

const Ranks has_a_handler("has a handler", [](const Rank& rank) {
  former = std::set_terminate([] {
    std::fputs("own handler\n", stderr);
    former();
  });
  if (rank.world_size == 1) throw_uncaught();
  ProcessGroup group = init_process_group();
  group.barrier();
  if (rank.rank == 1) throw_uncaught();
  group.barrier();
});

TEST(UncaughtException, IsReportedOnceWithTheProgramsHandlerBetweenOurs) {
  for (const int ranks : {1, 2}) {
    const Finished done = launch(has_a_handler, ranks);
    EXPECT_EQ(done.code, 128 + SIGABRT) << done.err;
    const std::string last = std::to_string(ranks - 1);
    EXPECT_TRUE(contains(done.err, "rank " + last + " ended with an exception: " + no_data))
        << done.err;
    EXPECT_TRUE(contains(done.err, "[" + last + "] own handler\n")) << done.err;
    EXPECT_FALSE(contains(done.err, "terminate called")) << done.err;
  }
}

const Ranks replaces_the_handler("replaces the handler", [](const Rank& rank) {
  std::set_terminate([] { std::_Exit(42); });
  ProcessGroup group = init_process_group();
  group.barrier();
  if (rank.rank == 1) throw_uncaught();
  group.barrier();
});

TEST(UncaughtException, IsReportedIfTheProgramReplacedTheHandlerBeforeItsGroup) {
  const Finished done = launch(replaces_the_handler, 2);
  EXPECT_EQ(done.code, 42) << done.err;
  EXPECT_TRUE(contains(done.err, "lockstep run: rank 1 ")) << done.err;
  EXPECT_TRUE(contains(done.err, no_data)) << done.err;
}

const Ranks has_a_child("has a child", [](const Rank&) {
  const pid_t child = ::fork();
  if (child == 0) throw_uncaught();
  int status = 0;
  ::waitpid(child, &status, 0);
  std::_Exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? 3 : 4);
});

TEST(UncaughtException, IsPrintedByAProgramThatARankStarts) {
  std::string command = "(";
  for (const std::string& word : throws_before_the_group.command()) command += "'" + word + "' ";
  const Finished done =
      test::run_command({LOCKSTEP_RUN, "-n", "1", "/bin/sh", "-c", command + "); exit 3"});
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_TRUE(contains(done.err, "[0] terminate called")) << done.err;
}

TEST(UncaughtException, IsNotTakenFromAForkedChild) {
  const Finished done = launch(has_a_child, 1);
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_TRUE(contains(done.err, "lockstep run: rank 0 exited with code 3\n")) << done.err;
  EXPECT_TRUE(contains(done.err, "[0] terminate called")) << done.err;
}

// --- Stragglers ----------------------------------------------------------------------------------

constexpr int late_rank = 1;
constexpr int steps = 30;
constexpr auto delay = std::chrono::milliseconds(15);

// Calls `act`. Prints "disturbed" if it took much longer than `usual`. Then a process stood still,
// and the others may have waited longer for it than for the late rank.
void act_undisturbed(std::chrono::milliseconds usual, const std::function<void()>& act) {
  const auto start = Clock::now();
  act();
  if (Clock::now() - start < usual + std::chrono::milliseconds(200)) return;
  std::puts("disturbed");
  std::fflush(stdout);
}

// Launches the ranks again if they were disturbed.
Finished launch_undisturbed(const Ranks& ranks, int world_size) {
  Finished done = launch(ranks, world_size);
  for (int more = 0; more < 10 && contains(done.out, "disturbed"); ++more)
    done = launch(ranks, world_size);
  return done;
}

void make_step(const ProcessGroup& world, StepPhase late_in) {
  for (const StepPhase phase : {StepPhase::data, StepPhase::forward, StepPhase::backward}) {
    const InPhase scope(phase);
    const bool is_late = world.rank() == late_rank && phase == late_in;
    std::this_thread::sleep_for(is_late ? delay : std::chrono::milliseconds(1));
  }
  world.barrier();
  count_step(world);
}

// A training loop of phases. Rank `late_rank` is late in one of them.
void train(const ProcessGroup& world, StepPhase late_in) {
  for (int step = 0; step < steps; ++step)
    act_undisturbed(delay, [&] { make_step(world, late_in); });
}

template <StepPhase late_in>
void be_late(const Rank&) {
  ProcessGroup world = init_process_group();
  train(world, late_in);
  destroy_process_group(world);
}

const Ranks late_in_data("late in data", be_late<StepPhase::data>);
const Ranks late_in_forward("late in forward", be_late<StepPhase::forward>);
const Ranks late_in_backward("late in backward", be_late<StepPhase::backward>);

// The state of a process from /proc: 'T' if stopped.
char state_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  return stat.at(stat.rfind(')') + 2);
}

// The late rank stops itself in data, once; rank 0 continues it.
const Ranks one_is_stopped("one is stopped", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  std::int32_t pid = ::getpid();
  world.broadcast({.data = &pid, .count = 1, .dtype = DType::int32}, late_rank);
  std::thread continues([&] {
    if (rank.rank != 0) return;
    while (state_of(pid) != 'T') std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    ::kill(pid, SIGCONT);
  });
  const auto advance = [&](bool stops) {
    {
      const InPhase data(StepPhase::data);
      if (stops && rank.rank == late_rank) ::raise(SIGSTOP);
    }
    world.barrier();
    count_step(world);
  };
  for (int step = 0; step < steps; ++step)
    if (step == steps / 2)
      advance(/*stops=*/true);
    else
      act_undisturbed({}, [&] { advance(/*stops=*/false); });
  continues.join();
  destroy_process_group(world);
});

// Times are sent every second.
void wait_until_times_are_sent() {
  constexpr std::chrono::milliseconds time(2500);
  act_undisturbed(time, [&] { std::this_thread::sleep_for(time); });
}

const Ranks late_and_failing("late and failing", [](const Rank&) {
  ProcessGroup world = init_process_group();
  train(world, StepPhase::data);
  wait_until_times_are_sent();
  throw std::runtime_error("out of ideas");
});

const Ranks late_and_interrupted("late and interrupted", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  train(world, StepPhase::data);
  wait_until_times_are_sent();
  if (rank.rank == 0) ::kill(::getppid(), SIGINT);
  for (;;) ::pause();  // Until the launcher ends it.
});

// The line without its numbers; empty without a verdict.
std::string verdict_in(const std::string& err) {
  std::smatch found;
  const std::string number = "[0-9.]+ ";
  const std::regex line("lockstep run: (others waited) " + number +
                        "(ms a step) \\([0-9]+ %\\) (for rank [0-9]+, of which) " + number +
                        "(in [a-z]+)(?: and " + number +
                        "in [a-z]+)?( \\(its process stood still)?.*");
  if (!std::regex_search(err, found, line)) return "";
  return found[1].str() + " " + found[2].str() + " " + found[3].str() + " " + found[4].str() +
         found[5].str();
}

TEST(LaunchedGroup, ALateRankIsNamedWithItsPhase) {
  for (const auto& [ranks, phase] : {std::pair{&late_in_data, "data"},
                                     {&late_in_forward, "forward"},
                                     {&late_in_backward, "backward"}}) {
    const Finished done = launch_undisturbed(*ranks, 3);
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(verdict_in(done.err),
              std::string("others waited ms a step for rank 1, of which in ") + phase)
        << done.err;
  }
}

TEST(LaunchedGroup, AStoppedRankIsNamedWithItsPhase) {
  const Finished done = launch_undisturbed(one_is_stopped, 2);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(verdict_in(done.err),
            "others waited ms a step for rank 1, of which in data (its process stood still")
      << done.err;
}

TEST(LaunchedGroup, ALateRankIsNamedIfTheJobEndsOtherwise) {
  for (const auto& [ranks, code] :
       {std::pair{&late_and_failing, 1}, {&late_and_interrupted, 128 + SIGINT}}) {
    const Finished done = launch_undisturbed(*ranks, 2);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_EQ(verdict_in(done.err), "others waited ms a step for rank 1, of which in data")
        << done.err;
  }
}

}  // namespace
}  // namespace lockstep
