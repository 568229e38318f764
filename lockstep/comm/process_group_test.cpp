// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/process_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/barrier.h"
#include "lockstep/comm/in_process.h"
#include "tests/fault_of.h"
#include "tests/optimized_code.h"
#include "tests/ranks.h"

namespace lockstep::comm::process_group_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;

TEST(Barrier, EndsOnceEveryRankHasCalledIt) {
  std::atomic<int> calls = 0;
  run_in_process(3, [&](ProcessGroup& group) {
    for (int turn = 1; turn <= 20; ++turn) {
      ++calls;
      barrier(group);
      EXPECT_EQ(calls, 3 * turn);
      barrier(group);
    }
  });
}

TEST(Barrier, IsAMismatchWhereAnotherRankCallsSomethingElse) {
  const auto body = [](ProcessGroup& group) {
    float value = 0;
    if (group.rank() == 0) return barrier(group, {.timeout = 10s});
    group.all_reduce({.data = &value, .count = 1});
  };
  std::string message;
  EXPECT_EQ(fault_of([&] { run_in_process(2, body); }, &message), Fault::mismatch);
  EXPECT_NE(message.find("rank 0 called barrier"), message.npos) << message;
}

// The deprecated wait() for a deadline must not make this ambiguous.
static_assert(requires(const Work& work) { work.wait({}); });

TEST(ProcessGroup, RunCollectiveRefusesOperationsThatAreNoCollectiveOnData) {
  const ProcessGroup self = ProcessGroup::self();
  for (const Operation operation : {Operation::none, Operation::split, Operation::send,
                                    Operation::allocate, static_cast<Operation>(200)})
    EXPECT_EQ(fault_of([&] { run_collective(self, operation, {}); }), Fault::misuse);
  std::string text;
  EXPECT_EQ(fault_of([&] { run_collective_async(self, Operation::destroy, {}); }, &text),
            Fault::misuse);
  EXPECT_NE(text.find("destroy_process_group is not a collective"), text.npos) << text;
  const std::vector<std::size_t> counts{0};
  EXPECT_EQ(fault_of([&] { run_collective(self, Operation::all_to_all, {.counts = counts}); }),
            Fault::misuse);
  self.barrier();
}

TEST(ProcessGroup, SelfNeedsNoLauncher) {
  ProcessGroup self = ProcessGroup::self();
  EXPECT_EQ(self.size(), 1);
  std::vector<float> values{1, 2};
  self.all_reduce_async({.data = values.data(), .count = values.size()}).wait();
  self.split(/*color=*/0).barrier();
  EXPECT_EQ(values, (std::vector<float>{1, 2}));
  destroy_process_group(self);
  EXPECT_EQ(fault_of([&] { self.barrier(); }), Fault::misuse);
  ProcessGroup::self().barrier();
}

TEST(ProcessGroup, SelfTakesMemoryForDataOnlyWhenItMovesSome) {
  if (!test::is_optimized_code) GTEST_SKIP() << "sanitizers need memory of their own";
  const auto resident = [] { return process_stat(::getpid())->resident_bytes; };
  const std::int64_t before = resident();
  std::vector<ProcessGroup> groups;
  for (int i = 0; i < 16; ++i) {
    groups.push_back(ProcessGroup::self());
    groups.back().barrier();
  }
  EXPECT_LT(resident(), before + (std::int64_t{8} << 20));
}

const Ranks memory_outlives("memory outlives", [](const Rank& rank) {
  RegisteredMemory memory;
  {
    ProcessGroup group = init_process_group();
    memory = group.allocate(1 << 16);
    static_cast<char*>(memory.data())[65535] = static_cast<char>(rank.rank);
    destroy_process_group(group);
  }
  EXPECT_EQ(static_cast<char*>(memory.data())[65535], rank.rank);
});

TEST(ProcessGroup, RegisteredMemoryOutlivesItsGroup) {
  EXPECT_TRUE(all_succeeded(memory_outlives.run(2)));
}

const Ranks one_block("one block", [](const Rank& rank) {
  RegisteredMemory memory;
  {
    ProcessGroup group = init_process_group();
    EXPECT_EQ(fault_of([&] { group.allocate_shared(std::size_t{1} << 44); }), Fault::system);
    memory = group.allocate_shared(100);
    EXPECT_EQ(memory.bytes(), 100U);
    auto* const words = static_cast<int*>(memory.data());
    EXPECT_EQ(words[rank.rank], 0);
    words[rank.rank] = rank.rank + 7;
    group.barrier();
    for (int peer = 0; peer < rank.world_size; ++peer) EXPECT_EQ(words[peer], peer + 7);
    destroy_process_group(group);
  }
  EXPECT_EQ(static_cast<int*>(memory.data())[rank.rank], rank.rank + 7);
});

TEST(ProcessGroup, SharedMemoryIsOneBlockForAllRanksAndOutlivesItsGroup) {
  EXPECT_TRUE(all_succeeded(one_block.run(1)));
  EXPECT_TRUE(all_succeeded(one_block.run(3)));
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// The connections over which peers have got memory from this process end a moment later.
void expect_descriptors(std::size_t most) {
  const Deadline deadline = in(std::chrono::seconds(10));
  while (open_descriptors() > most && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_LE(open_descriptors(), most);
}

std::size_t mappings() {
  std::ifstream in("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Does one collective for each kind of memory, a message and a sub-group: everything that could
// leave resources.
void use(ProcessGroup& group) {
  const auto memory = group.allocate(1 << 16);
  std::vector<float> values{1};
  group.all_reduce(buffer_of(values));
  EXPECT_EQ(values[0], static_cast<float>(group.size()));
  group.all_reduce({.data = memory.data(), .count = 4000});
  group.all_reduce_async(buffer_of(values)).wait();
  if (group.rank() == 0) group.send(buffer_of(values), 1);
  if (group.rank() == 1) group.recv(buffer_of(values), 0);
  ProcessGroup half = group.split(group.rank() % 2);
  half.barrier();
}

void expect_nothing_to_be_left(int groups, int warm_up) {
  std::size_t descriptors = 0;
  std::size_t maps = 0;
  for (int i = 0; i < groups; ++i) {
    ProcessGroup group = init_process_group();
    use(group);
    destroy_process_group(group);
    if (i != warm_up) continue;  // Allocator and libraries now hold all that they keep.
    descriptors = open_descriptors();
    maps = mappings();
  }
  expect_descriptors(descriptors);
  EXPECT_LE(mappings(), maps + 4);
}

const Ranks again_and_again("again and again",
                            [](const Rank&) { expect_nothing_to_be_left(50, 9); });

TEST(ProcessGroup, GroupsComeAndGoWithoutALeak) {
  EXPECT_TRUE(all_succeeded(again_and_again.run(3)));
}

const Ranks sub_groups_again_and_again("sub-groups again and again", [](const Rank&) {
  ProcessGroup world = init_process_group();
  std::size_t descriptors = 0;
  std::size_t maps = 0;
  for (int i = 0; i < 1000; ++i) {
    ProcessGroup group = world.split(0);
    use(group);
    destroy_process_group(group);
    if (i != 99) continue;
    descriptors = open_descriptors();
    maps = mappings();
  }
  expect_descriptors(descriptors);
  EXPECT_LE(mappings(), maps + 4);
  destroy_process_group(world);
});

TEST(ProcessGroup, AThousandSubGroupsLeaveNothing) {
  EXPECT_TRUE(all_succeeded(sub_groups_again_and_again.run(2)));
}

TEST(ProcessGroup, SubGroupsMayBeAsDeepAsOneLikes) {
  run_in_process(2, [](ProcessGroup& world) {
    std::vector<ProcessGroup> groups{world};
    for (int i = 0; i < 40; ++i) groups.push_back(groups.back().split(1'000'000'000 + i));
    groups.back().barrier();
    groups.erase(groups.begin());
  });
}

const Ranks misuse("misuse", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const auto n = static_cast<std::size_t>(rank.world_size);
  std::vector<float> values(4);
  std::vector<double> doubles(4 * n);
  std::vector<std::uint8_t> flags(4);
  const Buffer booleans{.data = flags.data(), .count = 4, .dtype = DType::boolean};
  const Buffer other{.data = doubles.data(), .count = 4 * n, .dtype = DType::float64};
  const Buffer mine = buffer_of(values);
  const auto expect = [](Fault fault, auto body) { EXPECT_EQ(fault_of(body), fault); };
  expect(Fault::misuse, [&] { init_process_group(); });
  expect(Fault::misuse, [&] { group.all_reduce({.data = nullptr, .count = 1}); });
  expect(Fault::misuse, [&] {
    group.all_reduce({.data = values.data(), .count = 1, .dtype = static_cast<DType>(99)});
  });
  expect(Fault::misuse, [&] { group.broadcast(mine, rank.world_size); });
  expect(Fault::misuse, [&] { group.reduce(mine, -1); });
  expect(Fault::misuse, [&] { group.all_gather(mine, mine); });
  expect(Fault::misuse, [&] { group.all_gather(mine, other); });
  expect(Fault::misuse, [&] { group.all_gather(mine, mine, Counts{4}); });
  expect(Fault::misuse, [&] { group.all_gather(mine, mine, Counts(n, 3)); });
  expect(Fault::misuse, [&] { group.reduce_scatter(mine, mine); });
  expect(Fault::misuse, [&] { group.gather(mine, other, rank.rank); });
  expect(Fault::misuse, [&] { group.scatter(mine, mine, rank.world_size); });
  expect(Fault::misuse, [&] { group.all_to_all(mine, mine, Counts(n, 2), Counts(n, 3)); });
  expect(Fault::misuse, [&] { group.all_to_all(mine, mine, Counts(n, 2)); });
  expect(Fault::misuse, [&] { group.send(mine, rank.rank); });
  expect(Fault::misuse, [&] { group.send(mine, rank.world_size); });
  expect(Fault::misuse, [&] { group.send(mine, 1 - rank.rank, -1); });
  expect(Fault::misuse, [&] { group.recv(mine, rank.world_size); });
  expect(Fault::misuse, [&] { group.new_group({}); });
  expect(Fault::misuse, [&] { group.new_group({0, 0}); });
  expect(Fault::misuse, [&] { group.new_group({0, 7}); });
  expect(Fault::misuse, [&] { group.allocate(std::size_t{1} << 63); });
  expect(Fault::unsupported, [&] { group.all_reduce(booleans, ReduceOp::average); });
  expect(Fault::unsupported, [&] { group.all_reduce(mine, ReduceOp::bxor); });
  expect(Fault::unsupported, [&] { group.all_reduce({.device = DeviceKind::cuda}); });
  group.all_reduce(mine);  // These errors did not break the group.
  ProcessGroup part = group.split(0);
  ProcessGroup copy = group;
  destroy_process_group(group);
  expect(Fault::misuse, [&] { copy.barrier(); });
  expect(Fault::misuse, [&] { copy.all_reduce_async(mine); });
  expect(Fault::misuse, [&] { copy.send(mine, 1 - rank.rank); });
  expect(Fault::misuse, [&] { copy.split(0); });
  expect(Fault::misuse, [&] { destroy_process_group(copy); });
  expect(Fault::misuse, [&] { part.barrier(); });  // It ended with the world.
  EXPECT_FALSE(copy.flight_record().empty());
});

TEST(ProcessGroup, MisuseIsRefusedBeforeAnythingIsSentAndAfterDestruction) {
  EXPECT_TRUE(all_succeeded(misuse.run(2)));
}

const Ranks no_memory("no memory", [](const Rank&) {
  ProcessGroup group = init_process_group();
  std::string text;
  EXPECT_EQ(fault_of([&] { group.allocate(std::size_t{1} << 44); }, &text), Fault::system);
  EXPECT_NE(text.find("52776558133248"), std::string::npos) << text;
  group.barrier();  // All ranks were refused alike, so the group is usable.
  EXPECT_EQ(group.allocate(4096).bytes(), 4096U);
  destroy_process_group(group);
});

TEST(ProcessGroup, TooLittleMemoryIsAnErrorOnEveryRankAndTheGroupGoesOn) {
  EXPECT_TRUE(all_succeeded(no_memory.run(3, 20s)));
}

const Ranks missing("missing", [](const Rank& rank) {
  if (rank.rank == 1) return;
  EXPECT_EQ(fault_of([] { init_process_group({.timeout = 300ms}); }), Fault::timeout);
});

// These have their own processes: one that has called init_process_group() is a rank, and its
// fork()ed children are not.
const Ranks without_a_master("without a master", [](const Rank&) {
  const LaunchEnvironment who{.launcher = "environment",
                              .world_size = 2,
                              .local_world_size = 2,
                              .job_id = "lacks a master",
                              .agent_fd = {}};
  std::string text;
  EXPECT_EQ(fault_of([&] { init_process_group({.timeout = 300ms, .environment = who}); }, &text),
            Fault::timeout);
  EXPECT_NE(text.find("as MASTER_ADDR or MASTER_PORT is not set"), text.npos) << text;
});

TEST(ProcessGroup, InitReportsThatAllRanksAreExpectedHereWithoutAMaster) {
  EXPECT_TRUE(all_succeeded(without_a_master.run(1)));
}

const Ranks too_loud("too loud", [](const Rank&) {
  ::setenv("LOCKSTEP_LOG", "loud", 1);
  std::string text;
  EXPECT_EQ(fault_of([&] { init_process_group(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("LOCKSTEP_LOG='loud' is no level"), text.npos) << text;
});

TEST(ProcessGroup, InitRefusesALogLevelThatThereIsNot) {
  EXPECT_TRUE(all_succeeded(too_loud.run(1)));
}

TEST(ProcessGroup, InitTimesOutWhenARankNeverStarts) {
  EXPECT_TRUE(all_succeeded(missing.run(2, 30s)));
}

// Groups of different threads do not wait for each other, in any order of the threads.
void groups_overlap(ProcessGroup& world, std::chrono::milliseconds time) {
  constexpr int threads = 4;
  std::vector<ProcessGroup> groups;
  for (int i = 0; i < threads; ++i) groups.push_back(world.split(0));
  std::vector<std::jthread> running;
  for (int i = 0; i < threads; ++i)
    running.emplace_back([&, i] {
      const ProcessGroup& group = groups[static_cast<std::size_t>(i)];
      std::vector<float> values(static_cast<std::size_t>(1000 * i + 1));
      const auto n = static_cast<float>(group.size());
      float go_on = 1;
      while (go_on != 0) {
        std::fill(values.begin(), values.end(), 1.0F);
        const Work work = group.all_reduce_async(buffer_of(values));
        const int next = (group.rank() + 1) % group.size();
        std::vector<float> token{static_cast<float>(group.rank())};
        std::vector<float> received(1);
        const Work sent = group.send_async(buffer_of(token), next, i);
        group.recv(buffer_of(received), any_source, i);
        work.wait();
        sent.wait();
        ASSERT_EQ(values.back(), n);
        ASSERT_EQ(received[0],
                  static_cast<float>((group.rank() + group.size() - 1) % group.size()));
        go_on = time > 0ms && Clock::now() < Deadline() + time ? 1 : 0;
        group.broadcast({.data = &go_on, .count = 1}, 0);
      }
    });
  running.clear();
}

TEST(ProcessGroup, GroupsOverlapFromDifferentThreads) {
  const auto until = (Clock::now() + 2s).time_since_epoch();
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(until);
  for (const int ranks : {2, 3})
    run_in_process(ranks, [&](ProcessGroup& world) { groups_overlap(world, time); });
}

// --- Buffers that overlap ------------------------------------------------------------------------

struct Overlap {
  const char* text;
  void (*call)(const ProcessGroup& group, const std::function<Buffer(int, int)>& part);
};

// A call of two ranks. `part` is a range of one block of memory: first element and count.
const Overlap overlaps[] = {
    {"all_gather: input and output, of 16 and 32 bytes, overlap by 16, and one is not",
     [](const auto& group, const auto& part) {
       group.all_gather(part((group.rank() + 1) % 2 * 4, 4), part(0, 8));
     }},
    {"all_gather: input and output, of 16 and 32 bytes, overlap by 4",
     [](const auto& group, const auto& part) { group.all_gather(part(7, 4), part(0, 8)); }},
    {"all_gather: input and output, of 8 and 20 bytes, overlap by 8",
     [](const auto& group, const auto& part) {
       group.all_gather(part(1, 2), part(0, 5), group.rank() == 0 ? Counts{2, 3} : Counts{3, 2});
     }},
    {"reduce_scatter: input and output, of 32 and 16 bytes, overlap by 12",
     [](const auto& group, const auto& part) { group.reduce_scatter(part(0, 8), part(5, 4)); }},
    {"reduce_scatter: input and output, of 32 and 16 bytes, overlap by 8",
     [](const auto& group, const auto& part) {
       group.reduce_scatter_async(part(2, 8), part(0, 4));
     }},
    {"gather: input and output, of 16 and 32 bytes, overlap by 4",
     [](const auto& group, const auto& part) {
       group.gather(part(7, 4), part(0, 8), group.rank());
     }},
    {"scatter: input and output, of 32 and 16 bytes, overlap by 8",
     [](const auto& group, const auto& part) {
       group.scatter(part(0, 8), part(6, 4), group.rank());
     }},
    {"all_to_all: input and output, of 32 and 32 bytes, overlap by 32",
     [](const auto& group, const auto& part) { group.all_to_all(part(0, 8), part(0, 8)); }},
    {"all_to_all: input and output, of 12 and 12 bytes, overlap by 4",
     [](const auto& group, const auto& part) {
       group.all_to_all(part(0, 3), part(2, 3), {1, 2}, {1, 2});
     }},
};

TEST(ProcessGroup, BuffersThatOverlapAreMisuseBeforeAnythingIsSent) {
  run_in_process(2, [](const ProcessGroup& group) {
    std::vector<float> values(16, 3);
    const auto part = [&](int begin, int count) {
      return Buffer{.data = values.data() + begin, .count = static_cast<std::size_t>(count)};
    };
    for (const Overlap& overlap : overlaps) {
      std::string text;
      EXPECT_EQ(fault_of([&] { overlap.call(group, part); }, &text), Fault::misuse) << overlap.text;
      EXPECT_NE(text.find(overlap.text), text.npos) << text;
    }
    EXPECT_EQ(values, std::vector<float>(16, 3));
    group.barrier();
  });
}

TEST(ProcessGroup, AdjacentOrEmptyBuffersDoNotOverlap) {
  run_in_process(2, [](const ProcessGroup& group) {
    std::vector<float> values(12, 1);
    group.all_to_all({.data = values.data(), .count = 4}, {.data = values.data() + 4, .count = 4});
    group.all_gather({.data = values.data() + 8, .count = 4}, {.data = values.data(), .count = 8});
    group.all_gather({.data = values.data() + 1, .count = 0}, {.data = values.data(), .count = 0});
    EXPECT_EQ(values, std::vector<float>(12, 1));
  });
}

const Ranks of_two_attempts("of two attempts", [](const Rank& rank) {
  LaunchEnvironment who = read_environment();
  who.attempt = rank.rank;
  std::string text;
  EXPECT_EQ(fault_of([&] { init_process_group({.timeout = 1s, .environment = who}); }, &text),
            Fault::timeout);
  const char* absent = rank.rank == 0 ? "rank 1, which has not called" : "rank 0 of job";
  EXPECT_NE(text.find(absent), text.npos) << text;
});

TEST(ProcessGroup, RanksOfTwoAttemptsOfAJobFormNoGroup) {
  EXPECT_TRUE(all_succeeded(of_two_attempts.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::process_group_test
