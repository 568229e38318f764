// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::comm::mismatch_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::fault_of;
using test::Rank;
using test::Ranks;

using Values = std::vector<float>;

Buffer buffer_of(Values& values, std::size_t count) {
  return {.data = values.data(), .count = count};
}

struct Mismatch {
  const char* what;
  void (*calls)(ProcessGroup& group, bool odd, Values& values);
  const char* of_rank_zero;  // In the message.
  const char* of_rank_one;   // In the message.
};

const Mismatch mismatches[] = {
    {"operation",
     [](ProcessGroup& group, bool odd, Values& values) {
       odd ? group.broadcast(buffer_of(values, 8), 0) : group.all_reduce(buffer_of(values, 8));
     },
     "rank 0 called all_reduce(sum) of 8 float32", "rank 1 called broadcast from rank 0 of 8"},
    {"count",
     [](ProcessGroup& group, bool odd, Values& values) {
       group.all_reduce(buffer_of(values, odd ? 1000 : 8));
     },
     "of 8 float32", "of 1000 float32"},
    {"dtype of equal bytes",
     [](ProcessGroup& group, bool odd, Values& values) {
       Buffer buffer = buffer_of(values, 100);
       if (odd) buffer.dtype = DType::int32;
       group.all_reduce(buffer);
     },
     "of 100 float32", "of 100 int32"},
    {"dtype of other bytes",
     [](ProcessGroup& group, bool odd, Values& values) {
       Buffer buffer = buffer_of(values, 100);
       if (odd) buffer.dtype = DType::float64;
       group.all_reduce(buffer);
     },
     "of 100 float32", "of 100 float64"},
    {"reduction",
     [](ProcessGroup& group, bool odd, Values& values) {
       group.all_reduce(buffer_of(values, 8), odd ? ReduceOp::max : ReduceOp::sum);
     },
     "all_reduce(sum)", "all_reduce(max)"},
    {"root",
     [](ProcessGroup& group, bool odd, Values& values) {
       group.broadcast(buffer_of(values, 8), odd ? 1 : 0);
     },
     "broadcast from rank 0", "broadcast from rank 1"},
    {"order of two buffers",
     [](ProcessGroup& group, bool odd, Values& values) {
       group.all_reduce(buffer_of(values, 8), ReduceOp::sum, {.label = odd ? "b" : "a"});
     },
     ", label 'a'", ", label 'b'"},
    {"the same label",
     [](ProcessGroup& group, bool odd, Values& values) {
       const CallOptions options{.label = "gradients"};
       odd ? group.broadcast(buffer_of(values, 8), 0, options)
           : group.all_reduce(buffer_of(values, 8), ReduceOp::sum, options);
     },
     "rank 0 called all_reduce(sum) of 8 float32, label 'gradients'",
     "rank 1 called broadcast from rank 0 of 8 float32, label 'gradients'"},
    {"label of one and none",
     [](ProcessGroup& group, bool odd, Values& values) {
       odd ? group.all_reduce(buffer_of(values, 8), ReduceOp::sum, {.label = "grads\x1b[2J"})
           : group.all_reduce(buffer_of(values, 8));
     },
     "rank 0 called all_reduce(sum) of 8 float32, rank 1", ", label 'grads [2J'"},
    {"label of an asynchronous call",
     [](ProcessGroup& group, bool odd, Values& values) {
       group
           .all_reduce_async(buffer_of(values, 8), ReduceOp::sum,
                             {.label = std::string(odd ? "the second" : "the first")})
           .wait();
     },
     ", label 'the first'", ", label 'the second'"},
    {"end of a long label",
     [](ProcessGroup& group, bool odd, Values& values) {
       std::string label;  // 199 bytes, and a character of two bytes.
       while (label.size() < 199) label += 'x';
       group.all_reduce(buffer_of(values, 8), ReduceOp::sum,
                        {.label = label + (odd ? "\xC3\xBC" : "\xC3\xB6")});
     },
     "xxx' and more (", "xxx' and more ("},
    {"label and operation",
     [](ProcessGroup& group, bool odd, Values& values) {
       odd ? group.barrier({.label = "after"})
           : group.all_reduce(buffer_of(values, 8), ReduceOp::sum, {.label = "before"});
     },
     "rank 0 called all_reduce(sum) of 8 float32, label 'before'",
     "rank 1 called barrier, label 'after'"},
    {"bytes to allocate",
     [](ProcessGroup& group, bool odd, Values&) { group.allocate(odd ? 200 : 100); },
     "allocate of 100 bytes", "allocate of 200 bytes"},
    {"whose memory to allocate",
     [](ProcessGroup& group, bool odd, Values&) {
       odd ? group.allocate_shared(100) : group.allocate(100);
     },
     "allocate of 100 bytes", "allocate_shared of 100 bytes"},
    {"counts of uneven parts",
     [](ProcessGroup& group, bool, Values& values) {
       Counts counts(static_cast<std::size_t>(group.size()), 4);
       counts[static_cast<std::size_t>(group.rank())] = 10;  // Each rank passes its own count.
       const std::size_t all = 4 * counts.size() + 6;
       Values whole(all, 3);
       group.all_gather(buffer_of(values, 10), buffer_of(whole, all), counts);
     },
     "in uneven parts", "in uneven parts"},
    {"even and uneven parts",
     [](ProcessGroup& group, bool odd, Values& values) {
       const auto n = static_cast<std::size_t>(group.size());
       Values whole(4 * n, 3);
       group.all_gather(buffer_of(values, 4), buffer_of(whole, 4 * n),
                        odd ? Counts(n, 4) : Counts{});
     },
     "all_gather of 4 float32", "in uneven parts"},
    {"what one sends and another receives",
     [](ProcessGroup& group, bool odd, Values& values) {
       const auto n = static_cast<std::size_t>(group.size());
       Values in(5 * n, 3);
       const Counts sends(n, odd ? 3 : 2);
       group.all_to_all(buffer_of(values, odd ? 3 * n : 2 * n), buffer_of(in, 2 * n), sends,
                        Counts(n, 2));
     },
     "rank 1 sends 3 elements to rank 0, which receives 2", "rank 0"},
    {"members of a group",
     [](ProcessGroup& group, bool odd, Values&) {
       group.new_group(odd ? std::vector<int>{1} : std::vector<int>{0});
     },
     "split", "split"},
    {"an extra call",
     [](ProcessGroup& group, bool odd, Values& values) {
       odd ? group.all_reduce(buffer_of(values, 8)) : destroy_process_group(group);
     },
     "rank 0 called destroy_process_group", "rank 1 called all_reduce"},
    {"an extra asynchronous call",
     [](ProcessGroup& group, bool odd, Values& values) {
       if (odd) group.all_reduce_async(buffer_of(values, 8));
       group.barrier();
     },
     "rank 0 called barrier", "rank 1 called all_reduce"},
};

// The memory must not change.
void expect_mismatch(ProcessGroup& group, const Mismatch& mismatch) {
  Values values(4000, 3);
  const Values before = values;
  std::string text;
  const auto begin = Clock::now();
  EXPECT_EQ(fault_of([&] { mismatch.calls(group, group.rank() == 1, values); }, &text),
            Fault::mismatch)
      << mismatch.what;
  EXPECT_LT(seconds_since(begin), 10.0) << mismatch.what;  // Another rank may stand still.
  EXPECT_NE(text.find(mismatch.of_rank_zero), std::string::npos) << mismatch.what << ": " << text;
  EXPECT_NE(text.find(mismatch.of_rank_one), std::string::npos) << mismatch.what << ": " << text;
  EXPECT_EQ(values, before) << mismatch.what << ": memory was touched";
  EXPECT_EQ(fault_of([&] { group.barrier(); }), Fault::mismatch) << "the group must stay broken";
}

TEST(Mismatch, IsNamedOnEveryThread) {
  for (const Mismatch& mismatch : mismatches)
    for (const int ranks : {2, 3})
      EXPECT_EQ(fault_of([&] {
                  run_in_process(ranks,
                                 [&](ProcessGroup& group) { expect_mismatch(group, mismatch); });
                }),
                Fault::mismatch);
}

const Ranks all_mismatches("all mismatches", [](const Rank&) {
  ProcessGroup world = init_process_group();
  for (const Mismatch& mismatch : mismatches) {
    ProcessGroup group = world.split(0);  // A broken group does not affect a new one.
    expect_mismatch(group, mismatch);
    world.barrier();
  }
  destroy_process_group(world);
});

TEST(Mismatch, IsNamedOnEveryProcess) {
  EXPECT_TRUE(all_succeeded(all_mismatches.run(2)));
  EXPECT_TRUE(all_succeeded(all_mismatches.run(3)));
}

// --- Numbers of ranks, without a launcher that knows the right one -------------------------------

std::string refusal_of(int world_size) {
  LaunchEnvironment who = read_environment();
  who.world_size = who.local_world_size = world_size;
  std::string text;
  const auto begin = Clock::now();
  EXPECT_EQ(fault_of([&] { init_process_group({.timeout = 60s, .environment = who}); }, &text),
            Fault::mismatch);
  EXPECT_LT(seconds_since(begin), 20.0);
  return text;
}

const Ranks another_size("another size", [](const Rank& rank) {
  const std::string text = refusal_of(rank.rank == 1 ? 3 : 2);
  EXPECT_NE(text.find("rank 1 expects 3 ranks, rank 0 expects 2 (WORLD_SIZE)"), text.npos) << text;
});

TEST(Mismatch, IsReportedOnBothRanksForDifferentWorldSizesWithoutALauncher) {
  EXPECT_TRUE(all_succeeded(another_size.run(2)));
}

// Ranks 0 and 1 expect two ranks, which is correct for them.
const Ranks one_too_many("one too many", [](const Rank& rank) {
  const std::filesystem::path refused = rank.scratch / "refused";
  if (rank.rank == 2) {
    const std::string text = refusal_of(3);
    EXPECT_NE(text.find("rank 2 expects 3 ranks, rank 0 expects 2 (WORLD_SIZE)"), text.npos)
        << text;
    std::ofstream(refused) << "yes";
    return;
  }
  LaunchEnvironment who = read_environment();
  who.world_size = who.local_world_size = 2;
  ProcessGroup group = init_process_group({.environment = who});
  await_file(refused);
  group.barrier();
  destroy_process_group(group);
});

TEST(Mismatch, ARankThatRank0DoesNotExpectFailsAlone) {
  EXPECT_TRUE(all_succeeded(one_too_many.run(3)));
}

TEST(Mismatch, BothSidesOfAMessageNameIt) {
  const auto expect_named = [](auto call) {
    std::string text;
    EXPECT_EQ(fault_of(call, &text), Fault::mismatch);
    EXPECT_NE(text.find("rank 0 sent 8 float32 with tag 5, rank 1 receives 9 float32"),
              std::string::npos)
        << text;
  };
  EXPECT_EQ(fault_of([&] {
              run_in_process(2, [&](ProcessGroup& group) {
                Values values(9, 3);
                if (group.rank() == 0) {
                  group.send(buffer_of(values, 8), 1, 5);
                  expect_named([&] { group.barrier(); });
                } else {
                  expect_named([&] { group.recv(buffer_of(values, 9), 0, 5); });
                  EXPECT_EQ(values, Values(9, 3));
                }
              });
            }),
            Fault::mismatch);
}

TEST(Mismatch, AMessageThatNobodyReceivesIsNamedAtTheEnd) {
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  run_in_process(2, [&](ProcessGroup& group) {
                    Values values(8, 3);
                    if (group.rank() == 0) group.send(buffer_of(values, 8), 1);
                  });
                },
                &text),
            Fault::mismatch);
  EXPECT_NE(text.find("with 1 messages that nobody received"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::comm::mismatch_test
