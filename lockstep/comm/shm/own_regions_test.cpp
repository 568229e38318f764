// Each rank passes its registered memory to its peers itself.

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/rank_zero_ends.h"
#include "tests/soon.h"

namespace lockstep::comm::own_regions_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::Rank;
using test::Ranks;
using test::soon;

constexpr std::size_t bytes = 64 << 10;

std::ptrdiff_t open_descriptors() {
  return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd"));
}

// Regions that are mapped in this process, its own and its peers'.
int mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:lockstep region") != line.npos) ++count;
  return count;
}

// The peers' closed connections end a moment later.
void expect_descriptors(std::ptrdiff_t most) {
  soon([&] { return open_descriptors() <= most; });
  EXPECT_LE(open_descriptors(), most);
}

void fill(const ProcessGroup& group, const RegisteredMemory& memory) {
  auto* const values = static_cast<float*>(memory.data());
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i)
    values[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(group.rank()));
}

Buffer values_in(const RegisteredMemory& memory) {
  return {.data = memory.data(), .count = bytes / sizeof(float)};
}

void expect_sum(const ProcessGroup& group, const RegisteredMemory& memory) {
  fill(group, memory);
  group.all_reduce(values_in(memory));
  const auto size = static_cast<std::size_t>(group.size());
  const auto* const values = static_cast<float*>(memory.data());
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i)
    ASSERT_EQ(values[i], static_cast<float>(i % 1000 * size + size * (size - 1) / 2)) << i;
  group.barrier();
}

char state_of(pid_t pid) {
  const auto process = process_stat(pid);
  return process ? process->state : 'X';
}

// --- Without rank 0 ------------------------------------------------------------------------------

const Ranks without_rank_zero("without rank zero", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  ProcessGroup others = world.split(rank.rank == 0 ? 0 : 1);
  if (rank.rank == 0) {
    test::write_pid(rank.scratch);
    return leave_process_group(world);
  }
  test::await_end(test::read_pid(rank.scratch));
  for (int round = 1; round <= 3; ++round) {
    const RegisteredMemory memory = others.allocate_local(bytes);
    expect_sum(others, memory);
    EXPECT_EQ(mapped_regions(), 1 + round) << "its own, and the peer's, which stay";
  }
  leave_process_group(world);
  EXPECT_EQ(mapped_regions(), 0);
});

TEST(OwnRegions, AreMappedOnceRankZeroHasEnded) {
  const auto exits = without_rank_zero.run(3);
  EXPECT_TRUE(all_succeeded(exits));
}

// --- Descriptors ---------------------------------------------------------------------------------

constexpr int ranks = 6;
constexpr int regions = 20;

// Fewer descriptors than the regions of two ranks need.
const Ranks few_descriptors("few descriptors", [](const Rank&) {
  std::optional<ProcessGroup> world = init_process_group();  // Descriptors of the first one stay
                                                             // open.
  expect_sum(*world, world->allocate_local(bytes));
  destroy_process_group(*world);
  world.reset();
  const auto before_group = open_descriptors();
  world = init_process_group();
  expect_sum(*world, world->allocate_local(bytes));
  const auto before = open_descriptors();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = static_cast<rlim_t>(before + regions + 2 * ranks);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  {
    std::vector<RegisteredMemory> all;
    for (int i = 0; i < regions; ++i) {
      all.push_back(world->allocate_local(bytes));
      expect_sum(*world, all.back());
    }
    expect_descriptors(before + regions);
    EXPECT_EQ(mapped_regions(), regions * ranks + ranks - 1) << "the first one's owner is gone";
    const ProcessGroup again = world->split(0);
    for (const RegisteredMemory& memory : all) expect_sum(again, memory);
  }
  expect_descriptors(before);
  // No descriptor is left for a region: an error of this rank alone.
  std::vector<FileDescriptor> taken;
  for (int fd = 0; (fd = ::dup(0)) >= 0;) taken.emplace_back(fd);
  try {
    world->allocate_local(bytes);
    ADD_FAILURE() << "it had no descriptor";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::system) << error.what();
  }
  taken.clear();
  expect_sum(*world, world->allocate_local(bytes));
  destroy_process_group(*world);
  world.reset();
  EXPECT_EQ(mapped_regions(), 0);
  EXPECT_EQ(open_descriptors(), before_group);
});

TEST(OwnRegions, NeedOneDescriptorOfTheirRankAndNoneOfItsPeers) {
  EXPECT_TRUE(all_succeeded(few_descriptors.run(ranks)));
}

// Rank 0 has a region that rank 1 has not mapped, and no pipe from rank 1.
const Ranks no_descriptor("no free descriptor", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  constexpr std::size_t count = 1 << 20;
  const RegisteredMemory memory = world.allocate_local(count * sizeof(float));
  std::fill_n(static_cast<float*>(memory.data()), count, 7.0F);
  std::vector<float> all(rank.rank == 1 ? 2 * count : 0);
  world.barrier();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (rank.rank == 0) {
    const rlimit none{static_cast<rlim_t>(FileDescriptor(::dup(0)).get()), before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    ASSERT_LT(::dup(0), 0);
  }
  world.gather({.data = memory.data(), .count = count}, buffer_of(all), 1);
  if (rank.rank == 1) {
    EXPECT_EQ(all, std::vector<float>(2 * count, 7));
    EXPECT_EQ(mapped_regions(), 2) << "rank 0's was not read, so this tests nothing";
  }
  std::vector<float> word{5};
  if (rank.rank == 1) world.send(buffer_of(word), 0);
  if (rank.rank == 0) {
    const auto begin = Clock::now();
    std::string text;
    EXPECT_EQ(test::fault_of([&] { world.recv(buffer_of(word), 1); }, &text), Fault::system);
    EXPECT_NE(text.find("no free descriptor"), text.npos) << text;
    EXPECT_NE(text.find("(ulimit -n), which is "), text.npos) << text;
    EXPECT_LT(seconds_since(begin), 20) << "it has waited for its timeout";
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  leave_process_group(world);
});

TEST(OwnRegions, ARankWithoutFreeDescriptorsServesOthersAndNamesTheLimit) {
  EXPECT_TRUE(all_succeeded(no_descriptor.run(2)));
}

// --- The owner is killed or stopped --------------------------------------------------------------

struct Outcome {
  Fault fault = Fault::bug;
  std::string text = {};
  std::vector<int> ranks = {};
  std::optional<Failure> failure = {};
  double seconds = 0;
};

Outcome outcome_of(const ProcessGroup& group, const RegisteredMemory& memory,
                   std::chrono::milliseconds timeout) {
  const auto begin = Clock::now();
  try {
    group.all_reduce(values_in(memory), ReduceOp::sum, {.timeout = timeout});
  } catch (const Error& error) {
    return {error.fault(), error.what(), error.ranks(), error.failure(), seconds_since(begin)};
  }
  ADD_FAILURE() << "rank 1 handed its memory over while it was stopped";
  return {};
}

void await_call(const ProcessGroup& group) {
  EXPECT_TRUE(soon([&] { return group.flight_record().find("\"entered\"") != std::string::npos; }));
}

// Rank 1 stops itself within the call, before its peers ask for its memory.
void stop_within_a_call(const Rank& rank, const ProcessGroup& world) {
  const RegisteredMemory memory = world.allocate_local(bytes);
  const Work never = world.all_reduce_async(values_in(memory));
  await_call(world);
  std::this_thread::sleep_for(200ms);  // Peers now see that it has come.
  test::write_pid(rank.scratch);
  ::raise(SIGSTOP);
  std::this_thread::sleep_for(1min);  // It is killed.
}

Outcome call_with_a_stopped_rank(const Rank& rank, std::optional<ProcessGroup>& world,
                                 std::chrono::milliseconds timeout,
                                 const std::function<void(pid_t)>& meanwhile) {
  const pid_t stopped = test::read_pid(rank.scratch);
  EXPECT_TRUE(soon([&] { return state_of(stopped) == 'T'; }));
  const auto before = open_descriptors();
  const std::jthread other([&] { meanwhile(stopped); });
  Outcome outcome;
  {
    const RegisteredMemory memory = world->allocate_local(bytes);
    outcome = outcome_of(*world, memory, timeout);
  }
  expect_descriptors(before);
  const bool was_mapping = outcome.text.find("mapping registered memory") != std::string::npos ||
                           outcome.text.find("has not handed over") != std::string::npos;
  EXPECT_TRUE(was_mapping) << outcome.text;
  return outcome;
}

const Ranks owner_killed("owner killed", [](const Rank& rank) {
  std::optional<ProcessGroup> world = init_process_group();
  if (rank.rank == 1) return stop_within_a_call(rank, *world);
  const auto asks = rank.scratch / "asks";  // Rank 2 is in the call.
  const Outcome outcome = call_with_a_stopped_rank(rank, world, 20s, [&](pid_t owner) {
    await_call(*world);
    if (rank.rank == 2) {
      std::ofstream(asks).put('1');
      return;
    }
    await_file(asks);
    std::this_thread::sleep_for(300ms);
    ::kill(owner, SIGKILL);
  });
  EXPECT_EQ(outcome.fault, Fault::peer_lost) << outcome.text;
  ASSERT_TRUE(outcome.failure) << outcome.text;
  EXPECT_EQ(outcome.failure->rank, 1);
  EXPECT_EQ(outcome.failure->signal, SIGKILL);
  EXPECT_LT(outcome.seconds, 10);
  world.reset();
  EXPECT_EQ(mapped_regions(), 0);
});

TEST(OwnRegions, AnOwnerThatIsKilledWhilePeersAskForItsMemoryIsNamed) {
  const auto exits = owner_killed.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

const Ranks owner_stopped("owner stopped", [](const Rank& rank) {
  std::optional<ProcessGroup> world = init_process_group();
  if (rank.rank == 1) return stop_within_a_call(rank, *world);
  pid_t owner = 0;
  const Outcome outcome =
      call_with_a_stopped_rank(rank, world, 3s, [&](pid_t stopped) { owner = stopped; });
  EXPECT_EQ(outcome.fault, Fault::timeout) << outcome.text;
  EXPECT_EQ(outcome.ranks, std::vector<int>{1}) << outcome.text;
  EXPECT_NE(outcome.text.find("STOPPED"), std::string::npos) << outcome.text;
  EXPECT_LT(outcome.seconds, 10);
  world.reset();
  const auto over = rank.scratch / "over";  // Rank 2 waits no longer.
  if (rank.rank == 2) {
    std::ofstream(over).put('1');
    return;
  }
  await_file(over);
  ::kill(owner, SIGKILL);
});

TEST(OwnRegions, AnOwnerThatIsStoppedIsNamedAtTheEndOfTheTime) {
  const auto exits = owner_stopped.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

// --- Children ------------------------------------------------------------------------------------

// The child keeps its parent's socket and descriptors, and drops its handle. It outlives the first
// group and the second, whose ranks have the same places.
const Ranks with_a_child("with a child", [](const Rank&) {
  pid_t child = -1;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  for (int round = 0; round < 2; ++round) {
    std::optional<ProcessGroup> world = init_process_group();
    std::optional<RegisteredMemory> memory = world->allocate_local(bytes);
    if (round == 0) child = ::fork();
    if (child == 0) {
      memory.reset();
      ::close(ends[1]);
      char none = 0;
      ::_exit(static_cast<int>(::read(ends[0], &none, 1)));
    }
    std::this_thread::sleep_for(50ms);
    expect_sum(*world, *memory);
    memory.reset();
    destroy_process_group(*world);
    world.reset();
    EXPECT_EQ(mapped_regions(), 0);
  }
  ::close(ends[1]);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
});

TEST(OwnRegions, AForkedChildIsInNobodysWay) { EXPECT_TRUE(all_succeeded(with_a_child.run(2))); }

}  // namespace
}  // namespace lockstep::comm::own_regions_test
