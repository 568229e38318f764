// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/ranks.h"
#include "tests/rigs/plugin_rig.h"
#include "tests/soon.h"

namespace lockstep::test::plugin_ends_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// More than a socket holds: the last part leaves after the sender's call has returned.
const Ranks first_leaves("plugins, the first leaves", [](const Rank& rank) {
  std::vector<std::uint32_t> expected(12'000'000);
  std::iota(expected.begin(), expected.end(), 1U);
  std::vector<std::uint32_t> data(expected.size());
  if (rank.rank == 0) data = expected;
  {
    Member member(engine_under_test(), member_of(rank));
    if (rank.rank == 1) std::this_thread::sleep_for(milliseconds(300));
    member.broadcast(buffer_of(data), 0);
  }
  EXPECT_TRUE(data == expected);
});

// Between calls no member is in the library, and no member may depend on that.
const Ranks wait_elsewhere("plugins, members wait elsewhere", [](const Rank& rank) {
  Member member(engine_under_test(), member_of(rank));
  std::vector<float> data(1'000'000, 1);
  const auto mark = [&](int call, int number) {
    return rank.scratch / (std::to_string(call) + " by " + std::to_string(number));
  };
  for (int call = 0; call < 20; ++call) {
    member.all_reduce(buffer_of(data), 0);
    std::ofstream(mark(call, rank.rank)).flush();
    for (int peer = 0; peer < rank.world_size; ++peer) await_file(mark(call, peer));
  }
});

int batch_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    count += sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH;
  return count;
}

// LoopThread in gloo/mesh.h.
const Ranks preempts("gloo's thread preempts while its caller waits", [](const Rank& rank) {
  Member member(engine_under_test(), member_of(rank));
  EXPECT_EQ(batch_threads(), 1);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  member.meet();
  if (rank.rank == 0) {
    std::thread caller([&] { member.meet(); });
    EXPECT_TRUE(soon([] { return batch_threads() == 0; }));
    std::ofstream(rank.scratch / "seen").flush();
    caller.join();
  } else {
    await_file(rank.scratch / "seen");
    member.meet();
  }
  EXPECT_EQ(batch_threads(), 1);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
});

const Ranks one_dies("plugins, one dies", [](const Rank& rank) {
  MemberOptions options = member_of(rank);
  options.timeout = seconds(10);  // Also for ranks that start late.
  Member member(engine_under_test(), options);
  std::vector<float> data(100'000);
  try {
    // The first call may fail too: the last rank may end before the others have received
    // everything.
    member.all_reduce(buffer_of(data), 0);
    if (rank.rank == rank.world_size - 1) raise(SIGKILL);
    while (true) member.all_reduce(buffer_of(data), 0);
  } catch (const Error& error) {
    EXPECT_TRUE(error.fault() == Fault::peer_lost || error.fault() == Fault::timeout)
        << error.what();
  }
});

// A peer is killed during a message. The waiting member returns when it is cancelled, as the core
// does after a report of the death.
void expect_end_within_a_message(const Rank& rank, const std::function<void(Member&)>& call) {
  Member member(engine_under_test(), member_of(rank));
  member.meet();
  std::jthread later([&] {
    std::this_thread::sleep_for(milliseconds(rank.rank == 1 ? 30 : 1000));
    if (rank.rank == 1) raise(SIGKILL);
    member.cancel();
  });
  const auto begin = steady_clock::now();
  try {
    while (true) call(member);
  } catch (const Error& error) {
    EXPECT_TRUE(error.fault() == Fault::peer_lost || error.fault() == Fault::aborted)
        << error.what();
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
}

constexpr std::size_t long_message = 25'000'000;  // Floats: about 100 ms on loopback.

const Ranks dies_in_all_gather("plugins, one dies in an all_gather", [](const Rank& rank) {
  std::vector<float> data(2 * long_message);
  expect_end_within_a_message(rank, [&](Member& member) {
    member.all_gather(
        buffer_of(data.data() + rank.rank * long_message, long_message, DType::float32),
        buffer_of(data), {long_message, long_message});
  });
});

const Ranks dies_in_all_to_all("plugins, one dies in an all_to_all", [](const Rank& rank) {
  std::vector<float> input(2 * long_message);
  std::vector<float> output(2 * long_message);
  const std::vector<std::size_t> counts{long_message, long_message};
  expect_end_within_a_message(rank, [&](Member& member) {
    member.run(Operation::all_to_all, {.input = buffer_of(input),
                                       .output = buffer_of(output),
                                       .send_counts = counts.data(),
                                       .receive_counts = counts.data()});
  });
});

const Ranks dies_in_broadcast("plugins, one dies in a broadcast", [](const Rank& rank) {
  std::vector<float> data(2 * long_message);
  expect_end_within_a_message(rank, [&](Member& member) { member.broadcast(buffer_of(data), 1); });
});

const Ranks one_waits("plugins, one waits", [](const Rank& rank) {
  std::optional<Member> member(std::in_place, engine_under_test(), member_of(rank));
  if (member->engine().cancel == nullptr) return;
  const auto ended = rank.scratch / "ended";  // The other member's connections.
  if (rank.rank == 1) {
    std::vector<float> late(10);
    await_file(ended);
    EXPECT_THROW(member->all_reduce(buffer_of(late), 0), Error);
    return;
  }
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(300));
    member->cancel();
  });
  std::vector<float> data(10'000'000);
  const auto begin = steady_clock::now();
  try {
    member->all_reduce(buffer_of(data), 0);
    ADD_FAILURE() << "a cancelled call succeeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::aborted) << error.what();
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
  canceller.join();
  member.reset();
  std::ofstream(ended).put('1');
});

// The last rank comes after rank 0 was seen to listen, if it does. The others can so be observed
// while they wait.
void listen_at(const Rank& rank, const std::string& address, const std::set<std::string>& allowed) {
  std::set<std::string> seen;
  const auto mark = rank.scratch / "seen";
  std::jthread watcher([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const std::string& found : listening_addresses()) seen.insert(found);
      if (rank.rank == 0 && !seen.empty() && !std::filesystem::exists(mark))
        std::ofstream(mark).put('1');
      std::this_thread::sleep_for(milliseconds(5));
    }
  });
  if (rank.rank == rank.world_size - 1) {
    std::this_thread::sleep_for(milliseconds(300));
    soon([&] { return std::filesystem::exists(mark); }, seconds(3));
  }
  {
    MemberOptions options = member_of(rank);
    options.address = address;
    Member member(engine_under_test(), options);
    member.meet();
    std::this_thread::sleep_for(milliseconds(50));
    member.meet();
  }
  watcher.request_stop();
  watcher.join();
  EXPECT_TRUE(rank.rank != 0 || !seen.empty());
  for (const std::string& found : seen) EXPECT_TRUE(allowed.contains(found)) << found;
}

constexpr const char* v4_in_table = "0100007F";
constexpr const char* v6_in_table = "00000000000000000000000001000000";

const Ranks listen_on_v4("plugins listen on 127.0.0.1",
                         [](const Rank& rank) { listen_at(rank, "127.0.0.1", {v4_in_table}); });
const Ranks listen_on_v6("plugins listen on ::1", [](const Rank& rank) {
  std::set<std::string> allowed = {v6_in_table};
  // oneCCL gets an interface, and takes any of its addresses.
  if (engine_under_test().name == std::string("oneccl")) allowed.insert(v4_in_table);
  listen_at(rank, "::1", allowed);
});

class PluginEnds : public Plugins {};

TEST_P(PluginEnds, LeavesNothingUnderWayThatAPeerWaitsFor) {
  EXPECT_TRUE(all_succeeded(wait_elsewhere.run(3)));
}

TEST_P(PluginEnds, MayBeLeftByWhoHasFinished) { EXPECT_TRUE(all_succeeded(first_leaves.run(2))); }

TEST_P(PluginEnds, HasAGlooThreadThatPreemptsWhileItsCallerWaits) {
  if (GetParam() != std::string("gloo")) GTEST_SKIP() << GetParam() << " starts no such thread";
  EXPECT_TRUE(all_succeeded(preempts.run(2)));
}

TEST_P(PluginEnds, FailsWhenAPeerIsKilled) {
  const auto exits = one_dies.run(3, seconds(40));
  EXPECT_EQ(exits[0].code, 0) << exits[0].output << " signal " << exits[0].signal;
  EXPECT_EQ(exits[1].code, 0) << exits[1].output << " signal " << exits[1].signal;
  EXPECT_EQ(exits[2].signal, SIGKILL);
}

TEST_P(PluginEnds, ReturnsFromACallWhosePeerIsKilledWithinAMessage) {
  const lockstep_engine& engine = engine_under_test();
  if (engine.cancel == nullptr || (engine.flags & LOCKSTEP_ENGINE_MAY_STAY) != 0)
    GTEST_SKIP() << GetParam() << " does not promise to return from a cancelled call at once";
  for (const Ranks* ranks : {&dies_in_all_gather, &dies_in_all_to_all, &dies_in_broadcast}) {
    const auto exits = ranks->run(2, seconds(40));
    EXPECT_EQ(exits[0].code, 0) << exits[0].output;
    EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
  }
}

TEST_P(PluginEnds, ReturnsFromACancelledCall) {
  if (engine_under_test().cancel == nullptr) GTEST_SKIP() << GetParam() << " cannot cancel";
  EXPECT_TRUE(all_succeeded(one_waits.run(2)));
}

TEST_P(PluginEnds, ListensOnTheChosenAddressAlone) {
  EXPECT_TRUE(all_succeeded(listen_on_v4.run(2)));
  EXPECT_TRUE(all_succeeded(listen_on_v6.run(2)));
}

TEST_P(PluginEnds, TimesOutWhenAMemberDoesNotCome) {
  const auto begin = steady_clock::now();
  try {
    Member alone(engine_under_test(),
                 {.rank = 0, .size = 2, .scratch = scratch_.path(), .timeout = seconds(1)});
    ADD_FAILURE() << "a communicator without its members";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout) << error.what();
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
}

INSTANTIATE_TEST_SUITE_P(Engines, PluginEnds, testing::ValuesIn(engines_under_test),
                         [](const auto& engine) { return std::string(engine.param); });

}  // namespace
}  // namespace lockstep::test::plugin_ends_test
