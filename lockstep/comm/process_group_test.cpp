// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/process_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;

// Sizes at which something changes: nothing, one, around the ranks, a cache line, a staging chunk.
constexpr std::size_t sizes[] = {0, 1, 2, 3, 5, 16, 17, 1000, 65536, 65537, 200003};

template <class T>
constexpr DType dtype_of = DType::float32;
template <>
constexpr DType dtype_of<double> = DType::float64;
template <>
constexpr DType dtype_of<std::int64_t> = DType::int64;

template <class T>
Buffer buffer_of(std::vector<T>& values) {
  return {.data = values.data(), .count = values.size(), .dtype = dtype_of<T>};
}

template <class T>
T value_at(int rank, std::size_t i) {
  return static_cast<T>(static_cast<int>(i % 97) - 40 + 5 * rank);
}

template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_at<T>(rank, i);
  return values;
}

template <class T>
T sum_at(int world_size, std::size_t i) {
  T sum{};
  for (int rank = 0; rank < world_size; ++rank) sum = sum + value_at<T>(rank, i);
  return sum;
}

template <class T>
void all_reduce_equals_a_serial_sum(const ProcessGroup& group) {
  for (const std::size_t count : sizes) {
    auto values = values_of<T>(group.rank(), count);
    group.all_reduce(buffer_of(values));
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(values[i], sum_at<T>(group.size(), i)) << "element " << i << " of " << count;
  }
}

template <class T>
void all_reduce_on_registered_memory_equals_a_serial_sum(const ProcessGroup& group) {
  constexpr std::size_t most = 200003;
  const RegisteredMemory memory = group.allocate(most * sizeof(T));
  T* const values = static_cast<T*>(memory.data());
  for (const std::size_t count : sizes) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{3}}) {
      if (offset + count > most) continue;
      for (std::size_t i = 0; i < count; ++i) values[offset + i] = value_at<T>(group.rank(), i);
      group.all_reduce({.data = values + offset, .count = count, .dtype = dtype_of<T>});
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(values[offset + i], sum_at<T>(group.size(), i)) << i << " of " << count;
    }
  }
}

template <class T>
void broadcast_gives_everybody_the_roots(const ProcessGroup& group) {
  for (int root = 0; root < group.size(); ++root)
    for (const std::size_t count : sizes) {
      auto values = values_of<T>(group.rank(), count);
      group.broadcast(buffer_of(values), root);
      ASSERT_EQ(values, values_of<T>(root, count));
    }
}

template <class T>
void all_gather_collects_everybodys(const ProcessGroup& group) {
  for (const std::size_t count : sizes) {
    auto mine = values_of<T>(group.rank(), count);
    std::vector<T> all(count * static_cast<std::size_t>(group.size()), T(-1));
    group.all_gather(buffer_of(mine), buffer_of(all));
    for (int rank = 0; rank < group.size(); ++rank)
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(all[static_cast<std::size_t>(rank) * count + i], value_at<T>(rank, i));
  }
}

template <class T>
void every_collective_of(const ProcessGroup& group) {
  all_reduce_equals_a_serial_sum<T>(group);
  all_reduce_on_registered_memory_equals_a_serial_sum<T>(group);
  broadcast_gives_everybody_the_roots<T>(group);
  all_gather_collects_everybodys<T>(group);
}

const Ranks collectives("collectives", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  EXPECT_EQ(group.rank(), rank.rank);
  EXPECT_EQ(group.size(), rank.world_size);
  every_collective_of<float>(group);
  every_collective_of<double>(group);
  every_collective_of<std::int64_t>(group);
  destroy_process_group(group);
});

TEST(ProcessGroup, CollectivesEqualASerialLoopOnOneToFiveRanks) {
  for (const int ranks : {1, 2, 3, 5}) EXPECT_TRUE(all_succeeded(collectives.run(ranks)));
}

const Ranks other_reductions("other reductions", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const auto n = static_cast<float>(rank.world_size);
  const auto result = [&](ReduceOp op) {
    std::vector<float> values{static_cast<float>(rank.rank + 1)};
    group.all_reduce(buffer_of(values), op);
    return values[0];
  };
  EXPECT_EQ(result(ReduceOp::sum), n * (n + 1) / 2);
  EXPECT_EQ(result(ReduceOp::average), n * (n + 1) / 2 * (1 / n));
  EXPECT_EQ(result(ReduceOp::min), 1);
  EXPECT_EQ(result(ReduceOp::max), n);
  EXPECT_EQ(result(ReduceOp::product), rank.world_size == 2 ? 2 : 6);

  std::uint16_t brain = 0x3f80;  // 1 in bfloat16.
  group.all_reduce({.data = &brain, .count = 1, .dtype = DType::bfloat16});
  EXPECT_EQ(brain, rank.world_size == 2 ? 0x4000 : 0x4040);  // 2, 3.
  destroy_process_group(group);
});

TEST(ProcessGroup, AveragesProductsMinimaMaximaAndBfloat16) {
  for (const int ranks : {2, 3}) EXPECT_TRUE(all_succeeded(other_reductions.run(ranks)));
}

const Ranks registered_gather("registered gather", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const auto memory = group.allocate(1 << 20);
  auto* values = static_cast<std::int64_t*>(memory.data());
  const auto n = static_cast<std::size_t>(rank.world_size);
  const std::size_t count = 4000;
  std::int64_t* own = values + static_cast<std::size_t>(rank.rank) * count;
  for (std::size_t i = 0; i < count; ++i) own[i] = value_at<std::int64_t>(rank.rank, i);
  group.all_gather({.data = own, .count = count, .dtype = DType::int64},
                   {.data = values, .count = n * count, .dtype = DType::int64});
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(values[r * count + i], value_at<std::int64_t>(static_cast<int>(r), i));
  group.broadcast({.data = values, .count = count, .dtype = DType::int64}, 1);
  EXPECT_EQ(values[7], value_at<std::int64_t>(0, 7));
  destroy_process_group(group);
});

TEST(ProcessGroup, RegisteredMemoryIsGatheredInPlace) {
  EXPECT_TRUE(all_succeeded(registered_gather.run(3)));
}

const Ranks mixed_memory("mixed memory", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const auto memory = group.allocate(4096);
  auto own = values_of<float>(rank.rank, 1024);
  float* registered = static_cast<float*>(memory.data());
  std::copy(own.begin(), own.end(), registered);
  group.all_reduce({.data = rank.rank == 0 ? registered : own.data(), .count = 1024});
  const float* result = rank.rank == 0 ? registered : own.data();
  for (std::size_t i = 0; i < 1024; ++i) ASSERT_EQ(result[i], sum_at<float>(rank.world_size, i));
  destroy_process_group(group);
});

TEST(ProcessGroup, OneRanksMemoryMayBeRegisteredAndAnothersNot) {
  EXPECT_TRUE(all_succeeded(mixed_memory.run(3)));
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

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t mappings() {
  std::ifstream in("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

const Ranks again_and_again("again and again", [](const Rank& rank) {
  std::size_t descriptors = 0;
  std::size_t maps = 0;
  for (int i = 0; i < 50; ++i) {
    ProcessGroup group = init_process_group();
    const auto memory = group.allocate(1 << 20);
    std::vector<float> values{1};
    group.all_reduce(buffer_of(values));
    EXPECT_EQ(values[0], static_cast<float>(rank.world_size));
    group.all_reduce_async(buffer_of(values)).wait();
    destroy_process_group(group);
    if (i != 9) continue;  // By then allocator and libraries have what they keep.
    descriptors = open_descriptors();
    maps = mappings();
  }
  EXPECT_LE(open_descriptors(), descriptors);
  EXPECT_LE(mappings(), maps + 4);
});

TEST(ProcessGroup, GroupsComeAndGoWithoutALeak) {
  EXPECT_TRUE(all_succeeded(again_and_again.run(3)));
}

const Ranks asynchronous("asynchronous", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  constexpr std::size_t calls = 200;
  std::vector<std::vector<float>> values(calls, {static_cast<float>(rank.rank), 1});
  std::vector<Work> works;
  for (auto& value : values) works.push_back(group.all_reduce_async(buffer_of(value)));
  std::vector<float> last{1};
  group.all_reduce(buffer_of(last));  // A blocking call comes after all of them.
  for (const Work& work : works) {
    EXPECT_TRUE(work.completed());
    work.wait();
  }
  const auto n = static_cast<float>(rank.world_size);
  for (const auto& value : values) ASSERT_EQ(value, (std::vector<float>{n * (n - 1) / 2, n}));
  group.barrier_async().wait();
  destroy_process_group(group);
});

TEST(ProcessGroup, AsynchronousCallsKeepTheirOrder) {
  EXPECT_TRUE(all_succeeded(asynchronous.run(2)));
  EXPECT_TRUE(all_succeeded(asynchronous.run(4)));
}

const Ranks misuse("misuse", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  std::vector<float> values(4);
  std::vector<double> doubles(4 * static_cast<std::size_t>(rank.world_size));
  std::vector<std::int64_t> integers(4);
  const auto expect = [](Fault fault, auto body) { EXPECT_EQ(fault_of(body), fault); };
  expect(Fault::misuse, [&] { init_process_group(); });
  expect(Fault::misuse, [&] { group.all_reduce({.data = nullptr, .count = 1}); });
  expect(Fault::misuse, [&] { group.broadcast(buffer_of(values), rank.world_size); });
  expect(Fault::misuse, [&] { group.broadcast(buffer_of(values), -1); });
  expect(Fault::misuse, [&] { group.all_gather(buffer_of(values), buffer_of(values)); });
  expect(Fault::misuse, [&] { group.all_gather(buffer_of(values), buffer_of(doubles)); });
  expect(Fault::misuse, [&] { group.allocate(std::size_t{1} << 63); });
  expect(Fault::unsupported, [&] { group.all_reduce(buffer_of(integers), ReduceOp::average); });
  expect(Fault::unsupported, [&] { group.all_reduce({.device = DeviceKind::cuda}); });
  group.all_reduce(buffer_of(values));  // None of that broke the group.
  ProcessGroup copy = group;
  destroy_process_group(group);
  expect(Fault::misuse, [&] { copy.barrier(); });
  expect(Fault::misuse, [&] { copy.all_reduce_async(buffer_of(values)); });
  expect(Fault::misuse, [&] { destroy_process_group(copy); });
});

TEST(ProcessGroup, MisuseIsRefusedBeforeAnythingIsSentAndAfterDestruction) {
  EXPECT_TRUE(all_succeeded(misuse.run(2)));
}

// Runs `call` on a fresh group and gives the text of the mismatch that it ends in.
template <class Call>
void expect_mismatch(ProcessGroup& group, Call call) {
  try {
    call();
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::mismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 0 called"), std::string::npos) << error.what();
  }
  EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::mismatch) << "the group must stay broken";
}

using Calls = void (*)(ProcessGroup& group, int rank, std::vector<float>& values);

struct Mismatch {
  const char* what;
  Calls calls;
};

const Mismatch mismatches[] = {
    {"operation",
     [](ProcessGroup& group, int rank, std::vector<float>& values) {
       rank == 0 ? group.all_reduce(buffer_of(values)) : group.broadcast(buffer_of(values), 0);
     }},
    {"count",
     [](ProcessGroup& group, int rank, std::vector<float>& values) {
       Buffer buffer = buffer_of(values);
       buffer.count = rank == 0 ? 8 : 1000;
       group.all_reduce(buffer);
     }},
    {"dtype",
     [](ProcessGroup& group, int rank, std::vector<float>& values) {
       Buffer buffer = buffer_of(values);
       buffer.count = 100;
       buffer.dtype = rank == 0 ? DType::float64 : DType::int64;
       group.all_reduce(buffer);
     }},
    {"reduction",
     [](ProcessGroup& group, int rank, std::vector<float>& values) {
       group.all_reduce(buffer_of(values), rank == 0 ? ReduceOp::sum : ReduceOp::max);
     }},
    {"root", [](ProcessGroup& group, int rank,
                std::vector<float>& values) { group.broadcast(buffer_of(values), rank); }},
    {"tag",
     [](ProcessGroup& group, int rank, std::vector<float>& values) {
       group.all_reduce(buffer_of(values), ReduceOp::sum, {.tag = rank == 0 ? "a" : "b"});
     }},
    {"bytes", [](ProcessGroup& group, int rank,
                 std::vector<float>&) { group.allocate(rank == 0 ? 100 : 200); }},
};

// A group that a mismatch broke ends the job of its process, so each case is a run of its own.
std::vector<Ranks> runs_of_mismatches() {
  std::vector<Ranks> runs;
  for (const Mismatch& mismatch : mismatches)
    runs.emplace_back(std::string("mismatch of ") + mismatch.what, [&mismatch](const Rank& rank) {
      ProcessGroup group = init_process_group();
      std::vector<float> values(1000, 3);
      expect_mismatch(group, [&] { mismatch.calls(group, rank.rank, values); });
      EXPECT_EQ(values, std::vector<float>(1000, 3)) << "memory was touched";
    });
  return runs;
}

const std::vector<Ranks> mismatched = runs_of_mismatches();

TEST(ProcessGroup, RanksThatCallDifferentThingsAllGetAMismatchAndNoGarbage) {
  for (const Ranks& run : mismatched) EXPECT_TRUE(all_succeeded(run.run(2)));
}

// What each survivor must see: the lost rank, by its number and process, and why.
template <class Check>
void expect_peer_lost(const ProcessGroup& group, Check check) {
  try {
    for (int i = 0; i < 1000; ++i) group.barrier();
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    ASSERT_EQ(error.fault(), Fault::peer_lost) << error.what();
    ASSERT_TRUE(error.failure()) << error.what();
    check(*error.failure());
  }
}

const Ranks killed("killed", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  for (int i = 0; i < 5; ++i) group.barrier();
  if (rank.rank == 1) ::raise(SIGKILL);
  expect_peer_lost(group, [](const Failure& failure) {
    EXPECT_EQ(failure.rank, 1);
    EXPECT_EQ(failure.signal, SIGKILL);
    EXPECT_GT(failure.pid, 0);
    EXPECT_EQ(failure.operation, "barrier");
    EXPECT_EQ(failure.sequence, 5U);
  });
});

TEST(ProcessGroup, AKilledRankIsNamedOnEverySurvivor) {
  const auto exits = killed.run(3, 10s);  // Far less than the calls' deadlines.
  EXPECT_EQ(exits[1].signal, SIGKILL);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

const Ranks rank_zero_killed("rank zero killed", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  if (rank.rank == 0) ::raise(SIGKILL);  // It runs the switchboard too.
  expect_peer_lost(group, [](const Failure& failure) {
    EXPECT_EQ(failure.rank, 0);
    EXPECT_EQ(failure.signal, SIGKILL);
  });
});

TEST(ProcessGroup, RankZeroIsNamedLikeAnyOther) {
  const auto exits = rank_zero_killed.run(3, 10s);
  EXPECT_EQ(exits[1].code, 0) << exits[1].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

const Ranks exited("exited", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  if (rank.rank == 1) std::exit(3);
  expect_peer_lost(group, [](const Failure& failure) {
    EXPECT_EQ(failure.rank, 1);
    EXPECT_EQ(failure.exit_code, 3);
    EXPECT_FALSE(failure.signal);
  });
});

TEST(ProcessGroup, ARankThatExitsWithoutDestroyingItsGroupIsNamedWithItsCode) {
  const auto exits = exited.run(2, 10s);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].code, 3);
}

const Ranks abandoned("abandoned", [](const Rank& rank) {
  ProcessGroup kept = init_process_group();
  if (rank.rank == 1) {
    kept.barrier_async().wait();
    kept.barrier_async();  // Never answered; it must not hold up the end of the group.
    throw std::runtime_error("the user's own");
  }
  kept.barrier();
  expect_peer_lost(kept, [](const Failure& failure) { EXPECT_EQ(failure.rank, 1); });
});

TEST(ProcessGroup, AGroupLostToAnExceptionFailsTheOthersAndEndsAtOnce) {
  const auto exits = abandoned.run(2, 10s);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].code, 1);
}

const Ranks late("late", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  if (rank.rank == 1) {
    std::this_thread::sleep_for(1s);
    group.barrier();  // Rank 0 did come to this one,
    EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::peer_lost);  // then gave up.
    return;
  }
  try {
    group.barrier({.timeout = 200ms});
    ADD_FAILURE() << "did not time out";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout);
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
});

TEST(ProcessGroup, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  EXPECT_TRUE(all_succeeded(late.run(2, 20s)));
}

const Ranks missing("missing", [](const Rank& rank) {
  if (rank.rank == 1) return;
  EXPECT_EQ(fault_of([] { init_process_group({.timeout = 300ms}); }), Fault::timeout);
});

TEST(ProcessGroup, InitGivesUpAtItsDeadlineWhenARankNeverComes) {
  EXPECT_TRUE(all_succeeded(missing.run(2, 10s)));
}

const Ranks no_memory("no memory", [](const Rank&) {
  ProcessGroup group = init_process_group();
  EXPECT_EQ(fault_of([&] { group.allocate(std::size_t{1} << 44); }), Fault::system);
});

TEST(ProcessGroup, TooLittleMemoryIsAnErrorOnEveryRank) {
  EXPECT_TRUE(all_succeeded(no_memory.run(2, 10s)));
}

}  // namespace
}  // namespace lockstep
