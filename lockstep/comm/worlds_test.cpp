// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/rank_zero_ends.h"
#include "tests/soon.h"

namespace lockstep::comm::worlds_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::fault_of;
using test::Rank;
using test::Ranks;

std::shared_ptr<Store> store_of(const Rank& rank) {
  return std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"});
}

// The world `name` of `size` ranks; `place` is this rank.
InitOptions world_of(const std::string& name, int place, int size,
                     const std::shared_ptr<Store>& store) {
  return {.timeout = 20s,
          .name = name,
          .environment = LaunchEnvironment{.launcher = "a test",
                                           .rank = place,
                                           .world_size = size,
                                           .local_world_size = 0,
                                           .job_id = {},
                                           .agent_fd = {}},
          .store = store};
}

InitOptions world_of(const std::string& name, const Rank& rank) {
  return world_of(name, rank.rank, rank.world_size, store_of(rank));
}

float count_ranks(const ProcessGroup& group) {
  float one = 1;
  group.all_reduce({.data = &one, .count = 1});
  return one;
}

void expect_whole(const ProcessGroup& group) {
  EXPECT_EQ(count_ranks(group), static_cast<float>(group.size())) << group.name();
}

std::string text_of(const std::function<void()>& act, Fault expected) {
  std::string text;
  EXPECT_EQ(fault_of(act, &text), expected) << text;
  return text;
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << "'" << part << "' is not in: " << text;
}

// --- Worlds with names ---------------------------------------------------------------------------

const Ranks beside_each_other("worlds beside each other", [](const Rank& rank) {
  const auto store = store_of(rank);
  ProcessGroup unnamed = init_process_group();
  ProcessGroup all = init_process_group(world_of("all", rank));
  EXPECT_EQ(all.name(), "all");
  EXPECT_EQ(all.backend(), "shm");
  EXPECT_EQ(all.local_size(), 3);
  expect_whole(all);
  if (rank.rank > 0) {
    ProcessGroup pair = init_process_group(world_of("pair", rank.rank - 1, 2, store));
    expect_whole(pair);
    expect_whole(pair.split(0));
    destroy_process_group(pair);
  }
  expect_whole(unnamed);
  destroy_process_group(unnamed);
  expect_whole(all);
  destroy_process_group(all);
});

TEST(Worlds, MayExistBesideEachOtherInOneProcess) {
  EXPECT_TRUE(all_succeeded(beside_each_other.run(3)));
}

// Threads of one process make their worlds in opposite orders.
const Ranks at_the_same_time("worlds at the same time", [](const Rank& rank) {
  const auto make = [&](const std::string& name) {
    ProcessGroup world = init_process_group(world_of(name, rank));
    expect_whole(world);
    destroy_process_group(world);
  };
  auto first = std::async(std::launch::async, make, rank.rank == 0 ? "a" : "b");
  std::this_thread::sleep_for(20ms);
  make(rank.rank == 0 ? "b" : "a");
  first.get();
});

TEST(Worlds, AreMadeByThreadsInAnyOrder) { EXPECT_TRUE(all_succeeded(at_the_same_time.run(2))); }

// The store keeps the values of each world of the same name.
const Ranks one_after_the_other("worlds one after the other", [](const Rank& rank) {
  for (int i = 0; i < 10; ++i) {
    ProcessGroup world = init_process_group(world_of("again", rank));
    expect_whole(world);
    if (rank.rank == i % rank.world_size) std::this_thread::sleep_for(30ms);
    i % 2 == 0 ? leave_process_group(world) : destroy_process_group(world);
  }
});

TEST(Worlds, MayHaveTheNameOfOneThatASlowerRankStillLeaves) {
  EXPECT_TRUE(all_succeeded(one_after_the_other.run(3)));
}

// torchrun's store has the keys of an attempt whose ranks were killed.
const Ranks after_a_killed_attempt("after a killed attempt", [](const Rank& rank) {
  const auto attempt = [&](bool is_killed) {
    const pid_t child = ::fork();
    if (child == 0) {
      ProcessGroup world = init_process_group(world_of("attempt", rank));
      count_ranks(world);
      if (is_killed) ::raise(SIGKILL);
      destroy_process_group(world);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  };
  EXPECT_TRUE(WIFSIGNALED(attempt(true)));
  EXPECT_EQ(attempt(false), 0);
});

TEST(Worlds, IgnoreWhatAnEarlierAttemptHasLeftInTheStore) {
  EXPECT_TRUE(all_succeeded(after_a_killed_attempt.run(3)));
}

const Ranks shrunken("a shrunken world", [](const Rank& rank) {
  const auto store = store_of(rank);
  ProcessGroup world = init_process_group(world_of("world", rank));
  expect_whole(world);
  if (rank.rank == 1) ::raise(SIGKILL);
  expect_in(text_of([&] { world.barrier(); }, Fault::peer_lost), "rank 1");
  leave_process_group(world);
  ProcessGroup rest = init_process_group(world_of("world", rank.rank / 2, 2, store));
  expect_whole(rest);
  destroy_process_group(rest);
});

TEST(Worlds, ShrinkAfterARankIsKilled) {
  auto exits = shrunken.run(3);
  EXPECT_EQ(exits[1].signal, SIGKILL);
  exits.erase(exits.begin() + 1);
  EXPECT_TRUE(all_succeeded(exits));
}

const Ranks forked("forked from several worlds", [](const Rank& rank) {
  const auto store = store_of(rank);
  ProcessGroup one = init_process_group(world_of("one", rank));
  ProcessGroup two = init_process_group(world_of("two", rank));
  leave_process_group(two);
  const pid_t child = ::fork();
  if (child == 0) {
    const Fault fault = fault_of([&] { init_process_group(world_of("three", 0, 1, store)); });
    const Fault own = fault_of([&] { one.barrier(); });
    std::exit(fault == Fault::misuse && own == Fault::misuse ? 0 : 1);  // With all destructors.
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  expect_whole(one);
  leave_process_group(one);
});

TEST(Worlds, AForkedChildIsInNoneOfThem) { EXPECT_TRUE(all_succeeded(forked.run(2))); }

TEST(Worlds, ANameNeedsAStore) {
  const std::string text = text_of([] { init_process_group({.name = "lonely"}); }, Fault::misuse);
  expect_in(text, "needs InitOptions::store");
}

// --- Groups made by their members ----------------------------------------------------------------

TEST(GroupOf, IsMadeByItsMembersAloneWhileOthersAreBusy) {
  run_in_process(4, [](const ProcessGroup& world) {
    if (world.rank() % 2 == 1) {
      const ProcessGroup odd = world.group_of({3, 1}, "odd");
      EXPECT_EQ(odd.name(), "world.odd");
      EXPECT_EQ(odd.rank(), world.rank() == 3 ? 0 : 1);
      expect_whole(odd);
      const ProcessGroup deep = odd.group_of({odd.rank()}, "alone");
      expect_whole(deep);
    }
    expect_whole(world);  // Ranks 0 and 2 have waited here.
  });
}

TEST(GroupOf, DoesNotWaitForCallsOfTheGroupItIsFrom) {
  run_in_process(3, [](const ProcessGroup& world) {
    if (world.rank() == 2) return world.barrier();
    const Work waits = world.barrier_async();
    if (world.rank() == 0) {
      std::thread([&] { expect_whole(world.group_of({0, 1}, "pair")); }).join();
    } else {
      expect_whole(world.group_of({0, 1}, "pair"));
    }
    waits.wait();
  });
}

TEST(GroupOf, RefusesWhatIsNoGroup) {
  run_in_process(2, [](const ProcessGroup& world) {
    const int other = 1 - world.rank();
    const auto refusal = [&](const std::vector<int>& ranks, const char* name) {
      return text_of([&] { world.group_of(ranks, name); }, Fault::misuse);
    };
    expect_in(refusal({other}, "x"), "is not one of the ranks");
    expect_in(refusal({0, 0}, "x"), "named twice");
    expect_in(refusal({}, "x"), "no ranks");
    expect_in(refusal({0, 7}, "x"), "group_of");
    expect_in(refusal({0, 1}, ""), "needs a name");
    expect_whole(world);
  });
}

// The receiver does not receive it yet.
void send_to_the_other(const ProcessGroup& pair, float value) {
  std::vector<float> word{value};
  if (pair.rank() == 0) pair.send(buffer_of(word), 1);
}

void expect_from_the_other(const ProcessGroup& pair, float expected) {
  if (pair.rank() == 0) return;
  std::vector<float> word(1);
  pair.recv(buffer_of(word), 0);
  EXPECT_EQ(word[0], expected) << pair.name();
}

void expect_groups_of_one_name(const ProcessGroup& world) {
  const int even = world.rank() / 2 * 2;
  const float mine = static_cast<float>(10 * even);
  const auto next = [&] { return world.group_of({even, even + 1}, "pair"); };
  ProcessGroup first = next();
  ProcessGroup second = next();
  EXPECT_EQ(first.name(), world.name() + ".pair");
  EXPECT_EQ(second.name(), world.name() + ".pair#2");
  send_to_the_other(first, mine + 1);
  send_to_the_other(second, mine + 2);  // Never received.
  expect_whole(second);
  leave_process_group(second);
  ProcessGroup third = next();
  EXPECT_EQ(third.name(), world.name() + ".pair#3");
  send_to_the_other(third, mine + 3);
  expect_from_the_other(third, mine + 3);
  expect_from_the_other(first, mine + 1);
  for (const ProcessGroup& pair : {first, third}) {
    expect_whole(pair);
    EXPECT_EQ(pair.allocate(4096).bytes(), 4096U);
  }
  leave_process_group(first);
  leave_process_group(third);
  if (world.rank() == 1 || world.rank() == 3) return;
  // Its first rank and its name are those of earlier ones.
  ProcessGroup others = world.group_of({0, 2}, "pair");
  EXPECT_EQ(others.name(), world.name() + ".pair");
  send_to_the_other(others, 7);
  expect_from_the_other(others, 7);
  expect_whole(others);
  leave_process_group(others);
}

TEST(GroupOf, MayHaveTheNameOfAnother) {
  run_in_process(4, [](const ProcessGroup& world) {
    expect_groups_of_one_name(world);
    world.barrier();
  });
}

const Ranks one_name("groups of one name", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  expect_groups_of_one_name(world);
  world.barrier();
  leave_process_group(world);
});

TEST(GroupOf, MayHaveTheNameOfAnotherInProcesses) { EXPECT_TRUE(all_succeeded(one_name.run(4))); }

TEST(GroupOf, NamesListsThatDifferAndAbsentRanks) {
  run_in_process(3, [](const ProcessGroup& world) {
    if (world.rank() == 2) return expect_whole(world);
    const std::vector<int> list = world.rank() == 0 ? std::vector{0, 2} : std::vector{0, 1};
    const auto other = [&] { world.group_of(list, "x", {.timeout = 200ms}); };
    expect_in(text_of(other, Fault::timeout), "world.x");
    if (world.rank() == 0) {
      const auto absent = [&] { world.group_of({0, 1}, "y", {.timeout = 200ms}); };
      expect_in(text_of(absent, Fault::timeout), "making group world.y");
    }
    expect_whole(world);
  });
}

// All but one fail to make a group; then all make it. `first`: the late rank starts before the
// others try again, not after them.
void expect_group_in_second_try(const ProcessGroup& world, int late, bool first) {
  const std::string name = std::string(first ? "first " : "last ") + std::to_string(late);
  const auto make = [&](std::chrono::milliseconds timeout) {
    return world.group_of({0, 1, 2}, name, {.timeout = timeout});
  };
  if (world.rank() != late) expect_in(text_of([&] { make(150ms); }, Fault::timeout), name);
  world.barrier();
  if ((world.rank() == late) != first) std::this_thread::sleep_for(100ms);
  for (int round = 0; round < 2; ++round) {
    ProcessGroup group = make(20s);
    expect_whole(group);
    // The two may each have seen the other's attempt end.
    const std::int64_t number = std::stoi(group.name().substr(group.name().rfind('#') + 1));
    EXPECT_GE(number, 2 + round);
    EXPECT_EQ(group.name(), fmt::format("{}.{}#{}", world.name(), name, number));
    std::int64_t most[] = {number, -number};
    group.all_reduce({.data = most, .count = 2, .dtype = DType::int64}, ReduceOp::max);
    EXPECT_EQ(most[0], -most[1]) << "ranks in different tries";
    leave_process_group(group);
  }
  world.barrier();
}

void expect_groups_in_second_try(const ProcessGroup& world) {
  for (int late = 0; late < world.size(); ++late)
    for (const bool first : {true, false}) expect_group_in_second_try(world, late, first);
}

TEST(GroupOf, IsCreatedInTheNextAttemptAfterAMissingRank) {
  run_in_process(3, [](const ProcessGroup& world) { expect_groups_in_second_try(world); });
}

const Ranks second_try("second try", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  expect_groups_in_second_try(world);
  leave_process_group(world);
});

TEST(GroupOf, IsCreatedInTheNextAttemptAfterAMissingRankInProcesses) {
  EXPECT_TRUE(all_succeeded(second_try.run(3)));
}

// The late rank gets the others' memory just before they abort, or just after.
TEST(GroupOf, IsMadeInTheEndByRanksThatTryUntilItIs) {
  run_in_process(3, [](const ProcessGroup& world) {
    for (int turn = 0; turn < 10; ++turn) {
      if (world.rank() == turn % 3)
        std::this_thread::sleep_for(std::chrono::milliseconds(15 + turn));
      int tries = 0;
      for (bool made = false; !made;) {
        try {
          const auto timeout = 20ms * (1 + turn % 2) * ++tries;  // Enough for any host in the end.
          ProcessGroup group =
              world.group_of({0, 1, 2}, std::to_string(turn), {.timeout = timeout});
          made = true;
          expect_whole(group);
          leave_process_group(group);
        } catch (const Error& error) {
          EXPECT_FALSE(made) << error.what();
          EXPECT_TRUE(error.fault() == Fault::timeout || error.fault() == Fault::aborted)
              << error.what();
        }
      }
      world.barrier();
    }
  });
}

// Rank 0 makes the memory of all groups here, so the two wait in different places.
TEST(GroupOf, NamesWhatAbsentRanksMake) {
  run_in_process(2, [](const ProcessGroup& world) {
    const auto make = [&](const std::string& name, std::chrono::milliseconds timeout) {
      try {
        ProcessGroup made = world.group_of({0, 1}, name, {.timeout = timeout});
        leave_process_group(made);
      } catch (const Error& error) {
        EXPECT_EQ(error.fault(), Fault::timeout) << error.what();
        EXPECT_EQ(error.ranks(), std::vector{1 - world.rank()}) << error.what();
        return std::string(error.what());
      }
      return std::string();
    };
    if (world.rank() == 0)
      expect_in(make("a", 1s), "rank 1 (a thread), making group world.b of ranks 0,1 for ");
    else
      expect_in(make("b", 3s), "rank 0 (a thread), making group world.c of ranks 0,1 for ");
    EXPECT_EQ(make("c", 20s), "");  // Rank 0 waits until rank 1 comes.
    expect_whole(world);
  });
}

// Rank 0 forwards the memory of the groups of this host.
const Ranks killed_while_others_make_groups(
    "killed while others make groups", [](const Rank& rank) {
      ProcessGroup world = init_process_group(world_of("world", rank));
      std::jthread killer;
      if (rank.rank == 0)
        killer = std::jthread([] {
          std::this_thread::sleep_for(100ms);
          ::kill(::getpid(), SIGKILL);
        });
      std::vector<int> all(static_cast<std::size_t>(rank.world_size));
      std::iota(all.begin(), all.end(), 0);
      try {
        while (true) {
          ProcessGroup made = world.group_of(all, "made");
          made.barrier();
          leave_process_group(made);
        }
      } catch (const Error& error) {
        expect_in(error.what(), "group world.made");
        ASSERT_TRUE(error.failure()) << error.what();
        EXPECT_EQ(error.failure()->rank, 0) << error.what();
        EXPECT_EQ(error.failure()->signal, SIGKILL) << error.what();
      }
    });

TEST(GroupOf, NamesARankZeroThatIsKilledMeanwhile) {
  for (int run = 0; run < 3; ++run) {
    auto exits = killed_while_others_make_groups.run(4);
    EXPECT_EQ(exits[0].signal, SIGKILL);
    exits.erase(exits.begin());
    EXPECT_TRUE(all_succeeded(exits));
  }
}

// --- Leaving -------------------------------------------------------------------------------------

const Ranks leaves_first("leaves first", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  ProcessGroup others = world.split(rank.rank == 0 ? 0 : 1);
  std::vector<float> word{7};
  if (rank.rank == 0) {
    world.send(buffer_of(word), 1, 5);
    leave_process_group(world);
    EXPECT_EQ(fault_of([&] { world.barrier(); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { leave_process_group(world); }), Fault::misuse);
    await_file(rank.scratch / "done");
    return;
  }
  std::this_thread::sleep_for(100ms);
  expect_whole(others);  // Made long before.
  expect_whole(world.group_of({2, 1}, "pair"));
  EXPECT_EQ(others.allocate(4096).bytes(), 4096U);
  std::vector<float> heard(1);
  if (rank.rank == 1) {
    world.recv(buffer_of(heard), 0, 5);  // Sent before rank 0 left.
    EXPECT_EQ(heard, word);
    world.send(buffer_of(word), 2);  // The first message between the two.
  } else {
    world.recv(buffer_of(heard), 1);
    EXPECT_EQ(heard, word);
  }
  expect_whole(others);
  expect_in(text_of([&] { world.barrier(); }, Fault::peer_lost), "rank 0 has left group world");
  others.barrier();
  if (rank.rank == 1) std::filesystem::create_directory(rank.scratch / "done");
  leave_process_group(world);
});

TEST(Leaving, IsNoErrorToRanksThatNeedNothingMoreOfTheOneThatLeft) {
  EXPECT_TRUE(all_succeeded(leaves_first.run(3)));
}

const Ranks sends_and_ends("sends and ends", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  test::expect_messages_outlive_rank_zero(world, rank.scratch);
});

const Ranks sends_and_ends_with_store("sends and ends, with a store", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  test::expect_messages_outlive_rank_zero(world, rank.scratch);
});

TEST(Leaving, KeepsMessagesThatWereSentBeforeTheProcessEnds) {
  EXPECT_TRUE(all_succeeded(sends_and_ends.run(3)));
  EXPECT_TRUE(all_succeeded(sends_and_ends_with_store.run(3)));
}

// It ends neither the others' calls nor their processes.
const Ranks ends_first("ends first", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  ProcessGroup others = world.split(rank.rank == rank.world_size - 1 ? 0 : 1);
  leave_process_group(world);
  if (rank.rank == rank.world_size - 1) return;
  EXPECT_EQ(fault_of([&] { others.barrier(); }), Fault::misuse);  // It ended with the world.
});

TEST(Leaving, NeedsNoOtherRank) { EXPECT_TRUE(all_succeeded(ends_first.run(3))); }

TEST(Leaving, IsReportedToRanksThatWaitForTheRank) {
  run_in_process(3, [](const ProcessGroup& world) {
    ProcessGroup group = world.group_of({0, 1, 2}, "some");
    if (group.rank() == 1) {
      world.barrier();
      return leave_process_group(group);
    }
    const Work waits = group.barrier_async();
    world.barrier();
    expect_in(text_of([&] { waits.wait(); }, Fault::peer_lost), "rank 1 has left group world.some");
  });
}

// Rank 2 waits for rank 0 alone, whose call has failed.
TEST(Leaving, IsKnownAtSecondHandToo) {
  run_in_process(3, [](const ProcessGroup& world) {
    ProcessGroup group = world.group_of({0, 1, 2}, "some");
    if (group.rank() == 1) return leave_process_group(group);
    std::vector<float> word(1);
    try {
      group.rank() == 0 ? group.barrier() : void(group.recv(buffer_of(word), 0));
      ADD_FAILURE() << "nobody has come";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::peer_lost) << error.what();
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
      expect_in(error.what(), "rank 1 has left group world.some");
    }
  });
}

void receive_from_neighbour(const ProcessGroup& world) {
  std::vector<float> word(1);
  world.recv(buffer_of(word), world.rank() - 1);
}

const Ranks left_for_a_message("left for a loss that ends a message", [](const Rank& rank) {
  const auto world = init_process_group(world_of("world", rank));
  test::expect_the_lost_one_named(rank, world, receive_from_neighbour);
});

const Ranks left_for_a_call("left for a loss that ends a call", [](const Rank& rank) {
  const auto world = init_process_group(world_of("world", rank));
  test::expect_the_lost_one_named(rank, world, [](const ProcessGroup& all) { all.barrier(); });
});

TEST(Leaving, AfterALossLeavesTheLostRankNamed) {
  for (const Ranks& ranks : {left_for_a_message, left_for_a_call}) {
    const auto exits = ranks.run(3);
    EXPECT_EQ(exits[0].signal, SIGKILL) << exits[0].output;
    EXPECT_EQ(exits[1].code, 0) << exits[1].output;
    EXPECT_EQ(exits[2].code, 0) << exits[2].output;
  }
}

// The last handle of a group whose ranks have other numbers than the job's.
TEST(Leaving, WithoutACallIsTheLossOfARankOfTheJob) {
  run_in_process(3, [](const ProcessGroup& world) {
    std::optional<ProcessGroup> group = world.group_of({2, 1, 0}, "turned");
    if (world.rank() == 2) return group.reset();
    try {
      group->barrier();
      ADD_FAILURE() << "rank 2 has not come";
    } catch (const Error& error) {
      ASSERT_TRUE(error.failure()) << error.what();
      EXPECT_EQ(error.failure()->rank, 2) << error.what();
    }
  });
}

// Rank 1 is killed while it leaves, when it waits for a call of a group made from the world.
const Ranks killed_while_leaving("killed while leaving", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  const ProcessGroup both = world.split(0);
  if (rank.rank == 0)
    return expect_in(text_of([&] { world.barrier(); }, Fault::peer_lost), "killed by signal 9");
  const Work never = both.barrier_async();
  const std::jthread killer([] {
    std::this_thread::sleep_for(200ms);
    ::raise(SIGKILL);
  });
  leave_process_group(world);
});

TEST(Leaving, IsNotDoneBeforeCallsUnderWayHaveEnded) {
  const auto exits = killed_while_leaving.run(2);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
}

TEST(Leaving, MayCoincideWithAnAbortOnAnotherThread) {
  run_in_process(1, [](const ProcessGroup& world) {
    for (int i = 0; i < 200; ++i) {
      ProcessGroup group = world.group_of({0}, "alone");
      const std::jthread aborts([copy = group] { copy.abort(); });
      leave_process_group(group);
    }
  });
}

TEST(Leaving, EndsMessagesThatCanNoLongerCome) {
  run_in_process(3, [](const ProcessGroup& world) {
    ProcessGroup group = world.split(0);
    std::vector<float> sent(100'000, 3);  // More than a pipe takes.
    std::vector<float> received(sent.size());
    if (group.rank() == 0) {
      group.send(buffer_of(sent), 1, 1);
      std::vector<float> word{4};
      group.send(buffer_of(word), 2, 1);
      return leave_process_group(group);
    }
    if (group.rank() == 1) {
      const Work first = group.recv_async(buffer_of(received), 0, 1);
      first.wait();
      EXPECT_EQ(received, sent);
      const auto second = [&] { group.recv(buffer_of(received), 0, 1); };
      expect_in(text_of(second, Fault::peer_lost), "rank 0 has left group world.1");
    }
    if (group.rank() == 2) {
      const Work sends = group.send_async(buffer_of(sent), 0);
      expect_in(text_of([&] { sends.wait(); }, Fault::peer_lost), "rank 0 has left");
    }
    std::vector<float> word{5};  // It does not break the group.
    if (group.rank() == 1) group.send(buffer_of(word), 2, 2);
    if (group.rank() == 2) group.recv({.data = received.data(), .count = 1}, 1, 2);
    leave_process_group(group);
  });
}

// Leaves in a message larger than its pipe; once it is received, and once kept for a later receive.
// On a busy host it may be complete before its sender leaves.
TEST(Leaving, InTheMiddleOfAMessageEndsThatMessageAlone) {
  for (const std::int64_t first_tag : {1, 2}) {
    std::atomic<int> sent = 0;
    std::atomic<int> received = 0;
    run_in_process(3, [&](const ProcessGroup& world) {
      ProcessGroup group = world.split(0);
      std::vector<float> large(1'000'000, 3);
      if (group.rank() == 0) {
        const Work sends = group.send_async(buffer_of(large), 1, 1);
        world.barrier();
        leave_process_group(group);
        try {
          sends.wait();
          ++sent;
        } catch (const Error& error) {
          EXPECT_EQ(error.fault(), Fault::misuse) << error.what();
        }
        return;
      }
      world.barrier();
      if (group.rank() == 1)
        for (const std::int64_t tag : {first_tag, std::int64_t{1}, std::int64_t{2}}) {
          try {
            group.recv(buffer_of(large), 0, tag);
            ++received;
          } catch (const Error& error) {
            EXPECT_EQ(error.fault(), Fault::peer_lost);
            expect_in(error.what(), "rank 0 has left group world.1");
          }
        }
      std::vector<float> word{5};
      if (group.rank() == 1) group.send(buffer_of(word), 2);
      if (group.rank() == 2) group.recv(buffer_of(word), 1);
      leave_process_group(group);
    });
    EXPECT_EQ(received, sent);
  }
}

// Pipes from rank 0 to rank 1 that this process has mapped.
int mapped_pipes() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find(" from 0 to 1") != line.npos) ++count;
  return count;
}

std::ptrdiff_t open_descriptors() {
  return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd"));
}

// Rank 1 leaves without having read rank 0's data. Rank 0 continues.
const Ranks leaves_a_pipe("leaves a pipe unread", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  world.barrier();
  const std::ptrdiff_t before = open_descriptors();
  std::optional<ProcessGroup> group = world.split(0);
  std::vector<float> word{5};
  if (rank.rank == 0) {
    group->send(buffer_of(word), 1);
    EXPECT_EQ(mapped_pipes(), 1);
  }
  world.barrier();
  if (rank.rank == 1) {
    leave_process_group(*group);
    group.reset();
    for (const Deadline end = in(10s); open_descriptors() > before && Clock::now() < end;)
      std::this_thread::sleep_for(2ms);
    EXPECT_LE(open_descriptors(), before);
  }
  world.barrier();
  if (rank.rank == 0) {
    group->send(buffer_of(word), 2);
    EXPECT_EQ(mapped_pipes(), 0);
    expect_in(text_of([&] { group->send(buffer_of(word), 1); }, Fault::peer_lost), "rank 1");
    EXPECT_EQ(mapped_pipes(), 0);
  }
  if (rank.rank == 2) group->recv(buffer_of(word), 0);
  world.barrier();
  if (group) leave_process_group(*group);
  destroy_process_group(world);
});

TEST(Leaving, FreesAPipeThatWasNotRead) { EXPECT_TRUE(all_succeeded(leaves_a_pipe.run(3))); }

TEST(Leaving, EndsAReceiveFromAnyRankWhenAllHaveLeft) {
  run_in_process(3, [](const ProcessGroup& world) {
    ProcessGroup group = world.split(0);
    std::vector<float> word{1};
    if (group.rank() == 2) group.send(buffer_of(word), 0);
    if (group.rank() > 0) return leave_process_group(group);
    EXPECT_EQ(group.recv(buffer_of(word)).rank, 2);
    const auto second = [&] { group.recv(buffer_of(word)); };
    expect_in(text_of(second, Fault::peer_lost), "have left group");
  });
}

TEST(Leaving, IsReportedWhenANewGroupIncludesTheRank) {
  run_in_process(3, [](const ProcessGroup& world) {
    ProcessGroup group = world.split(0);
    if (group.rank() == 2) return leave_process_group(group);
    expect_whole(group.group_of({0, 1}, "without it"));
    const auto with_it = [&] { group.group_of({0, 1, 2}, "with it"); };
    expect_in(text_of(with_it, Fault::peer_lost), "rank 2 has left group world.1");
    expect_whole(group.group_of({0, 1}, "again without it"));
  });
}

// Rank 2 leaves because rank 1 has left. Rank 0, which makes a group with rank 2, gets that reason.
const Ranks leaves_for_another("leaves for another", [](const Rank& rank) {
  ProcessGroup world = init_process_group(world_of("world", rank));
  ProcessGroup group = world.split(0);
  if (rank.rank == 0) {
    try {
      group.group_of({0, 2}, "pair");
      ADD_FAILURE() << "rank 2 has not come";
    } catch (const Error& error) {
      EXPECT_TRUE(error.failure() && error.failure()->rank == 1) << error.what();
    }
    std::filesystem::create_directory(rank.scratch / "done");
  } else {
    std::vector<float> word(1);
    if (rank.rank == 2)
      expect_in(text_of([&] { group.recv(buffer_of(word), 1); }, Fault::peer_lost), "rank 1");
    leave_process_group(group);
  }
  await_file(rank.scratch / "done");
});

TEST(Leaving, BecauseOfAnotherRankIsKnownToWhoMakesAGroup) {
  EXPECT_TRUE(all_succeeded(leaves_for_another.run(3)));
}

TEST(Leaving, EndsCallsUnderWayFirst) {
  run_in_process(2, [](const ProcessGroup& world) {
    ProcessGroup group = world.split(0);
    std::vector<float> values(1000, 1);
    const Work work = group.all_reduce_async(buffer_of(values));
    leave_process_group(group);
    EXPECT_EQ(values.back(), 2);
    EXPECT_NO_THROW(work.wait());
  });
}

// --- Work::on_completion() -----------------------------------------------------------------------

TEST(OnCompletion, IsCalledOnceInOrderAfterTheEnd) {
  run_in_process(2, [](const ProcessGroup& world) {
    std::vector<float> values(1000, 1), begin(1);
    if (world.rank() == 1) {
      world.recv(buffer_of(begin), 0);
      return world.all_reduce(buffer_of(values));
    }
    const Work work = world.all_reduce_async(buffer_of(values));
    std::vector<int> order;
    std::promise<void> both;
    work.on_completion([&] {
      EXPECT_EQ(values.back(), 2);
      EXPECT_TRUE(work.is_completed());
      order.push_back(1);
    });
    work.on_completion([&] {
      order.push_back(2);
      both.set_value();
    });
    world.send(buffer_of(begin), 1);
    both.get_future().wait();
    EXPECT_EQ(order, (std::vector{1, 2}));
    bool is_called = false;
    work.on_completion([&] { is_called = true; });
    EXPECT_TRUE(is_called);
  });
}

TEST(OnCompletion, ReportsFailuresAndMessages) {
  run_in_process(2, [](const ProcessGroup& world) {
    ProcessGroup group = world.split(0);
    std::vector<float> word{static_cast<float>(world.rank())};
    const int other = 1 - world.rank();
    const Work sent = world.send_async(buffer_of(word), other);
    std::vector<float> heard(1);
    const Work received = world.recv_async(buffer_of(heard), other);
    std::promise<void> came;
    received.on_completion([&] { came.set_value(); });
    came.get_future().wait();
    EXPECT_EQ(heard[0], static_cast<float>(other));
    sent.wait();
    if (world.rank() == 1) return leave_process_group(group);
    const Work fails = group.barrier_async();
    std::promise<std::exception_ptr> failed;
    fails.on_completion([&] { failed.set_value(fails.error()); });
    EXPECT_NE(failed.get_future().get(), nullptr);
  });
}

TEST(OnCompletion, MayWaitForAnotherMessage) {
  run_in_process(2, [](const ProcessGroup& world) {
    const int other = 1 - world.rank();
    std::vector<float> word{1}, first(1), second(1);
    const Work sent = world.send_async(buffer_of(word), other, 1);
    std::promise<void> came;
    world.recv_async(buffer_of(first), other, 1).on_completion([&] {
      const Work reply = world.send_async(buffer_of(word), other, 2);
      world.recv_async(buffer_of(second), other, 2).wait();
      reply.wait();
      came.set_value();
    });
    came.get_future().wait();
    sent.wait();
    EXPECT_EQ(second[0], 1);
  });
}

TEST(OnCompletion, MayStartCollectivesOfAnyGroup) {
  run_in_process(3, [](const ProcessGroup& world) {
    const ProcessGroup other = world.split(0);
    std::vector<float> first(10, 1), second(10, 1), third(10, 1);
    const Work begin = world.all_reduce_async(buffer_of(first));
    std::promise<Work> next, last;
    begin.on_completion([&] {
      next.set_value(other.all_reduce_async(buffer_of(second)));
      last.set_value(world.all_reduce_async(buffer_of(third)));  // In the same group.
    });
    begin.wait();
    next.get_future().get().wait();
    last.get_future().get().wait();
    EXPECT_EQ(second[0], 3);
    EXPECT_EQ(third[0], 3);
  });
}

}  // namespace
}  // namespace lockstep::comm::worlds_test
