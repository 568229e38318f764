// The engine is a table of functions in this file.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/engine_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/engine/plugin.h"
#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"

namespace lockstep::comm::engine_communicator_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

// An engine whose calls return when the gate opens.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0;
  bool is_open = true;
  bool is_cancelled = false;
  bool heeds_cancel = true;

  int pass(lockstep_engine_error* error) {
    std::unique_lock lock(mutex);
    ++calls;
    changed.notify_all();
    changed.wait(lock, [&] { return is_open || (is_cancelled && heeds_cancel); });
    return is_open ? 0 : plugin::fail(error, Fault::aborted, "cancelled");
  }
  void change(bool Gate::*what, bool value) {
    const std::lock_guard lock(mutex);
    this->*what = value;
    changed.notify_all();
  }
};

Gate* gate = nullptr;

int create(const lockstep_engine_config*, void** communicator, lockstep_engine_error*) {
  *communicator = gate;
  return 0;
}
void destroy(void*) {}
void cancel(void*) { gate->change(&Gate::is_cancelled, true); }
int supports(std::uint8_t, std::uint8_t, std::uint8_t) { return 1; }
int add_one(void*, const lockstep_collective* call, lockstep_engine_error* error) {
  EXPECT_EQ(call->operation, static_cast<std::uint8_t>(Operation::all_reduce));
  const int result = gate->pass(error);
  if (result == 0) static_cast<float*>(call->output.data)[0] += 1;
  return result;
}

enum class Cancelling { at_once, late, never };

lockstep_engine table(Cancelling how) {
  lockstep_engine made{};
  made.struct_bytes = sizeof made;
  made.abi = LOCKSTEP_ENGINE_ABI;
  made.name = "gate";
  made.devices = 1;
  made.supports = supports;
  made.create = create;
  made.destroy = destroy;
  made.cancel = how == Cancelling::never ? nullptr : cancel;
  made.flags = how == Cancelling::late ? LOCKSTEP_ENGINE_MAY_STAY : 0;
  made.run = add_one;
  return made;
}

// Lives as long as the process: a thread that stays in a call ends its communicator after the test.
const Engine& engine_of(Cancelling how) {
  static const lockstep_engine abis[] = {table(Cancelling::at_once), table(Cancelling::late),
                                         table(Cancelling::never)};
  static const Engine engines[] = {{.name = "gate", .path = {}, .version = {}, .abi = &abis[0]},
                                   {.name = "gate", .path = {}, .version = {}, .abi = &abis[1]},
                                   {.name = "gate", .path = {}, .version = {}, .abi = &abis[2]}};
  return engines[static_cast<int>(how)];
}

class Calls : public testing::Test {
 protected:
  Calls() { gate = &gate_; }

  std::unique_ptr<EngineCommunicator> make(Cancelling how = Cancelling::at_once) {
    return make(engine_of(how), {0});
  }

  static std::unique_ptr<EngineCommunicator> make(const Engine& engine,
                                                  const std::vector<int>& members) {
    CommunicatorOptions options;
    options.engine = &engine;
    options.world_ranks = members;
    options.name = "test";
    options.store = std::make_shared<InProcessStore>();
    return std::make_unique<EngineCommunicator>(options, [] {});
  }

  Collective all_reduce() {
    Collective collective;
    collective.signature = {.count = 1, .operation = Operation::all_reduce};
    collective.output = {.data = values_->data(), .count = 1};
    return collective;
  }

  Gate gate_;
  std::shared_ptr<std::vector<float>> values_ = std::make_shared<std::vector<float>>(1);
};

TEST_F(Calls, AreCompleteWhenTheyHaveBeenWaitedFor) {
  const auto communicator = make();
  for (int call = 1; call <= 3; ++call) {
    communicator->start(all_reduce(), values_);
    communicator->wait(in(10s), [] {});
    EXPECT_EQ(values_->front(), static_cast<float>(call));
  }
  communicator->abort();  // No call is running.
  EXPECT_FALSE(gate_.is_cancelled);
}

TEST_F(Calls, AreOneAtATime) {
  const auto communicator = make();
  gate_.is_open = false;
  communicator->start(all_reduce(), values_);
  EXPECT_EQ(fault_of([&] { communicator->start(all_reduce(), values_); }), Fault::bug);
  gate_.change(&Gate::is_open, true);
  communicator->wait(in(10s), [] {});
  EXPECT_EQ(values_->front(), 1);
}

TEST_F(Calls, ThrowTheErrorOfAFailingEngine) {
  const auto communicator = make();
  gate_.is_open = false;
  gate_.is_cancelled = true;
  communicator->start(all_reduce(), values_);
  EXPECT_EQ(fault_of([&] { communicator->wait(in(10s), [] {}); }), Fault::aborted);
}

TEST_F(Calls, AreCancelledAtTheirDeadline) {
  const auto communicator = make();
  gate_.is_open = false;
  communicator->start(all_reduce(), values_);
  EXPECT_EQ(fault_of([&] { communicator->wait(in(50ms), [] {}); }), Fault::timeout);
  EXPECT_TRUE(gate_.is_cancelled);
  EXPECT_EQ(values_.use_count(), 1);  // The call no longer uses its memory.
}

TEST_F(Calls, NameAFewOfTheOtherRanksAfterATimeout) {
  std::vector<int> members(1000);
  std::iota(members.begin(), members.end(), 40);
  const Engine engine = engine_of(Cancelling::at_once);
  const auto communicator = make(engine, members);
  gate_.is_open = false;
  communicator->start(all_reduce(), values_);
  std::string text;
  EXPECT_EQ(fault_of([&] { communicator->wait(in(50ms), [] {}); }, &text), Fault::timeout);
  EXPECT_NE(text.find("with ranks 41, 42, 43, 44, 45, 46, 47, 48 and 991 more of the job"),
            text.npos)
      << text;
}

TEST_F(Calls, AreCancelledWhenTheirWatchThrows) {
  const auto communicator = make();
  gate_.is_open = false;
  communicator->start(all_reduce(), values_);
  const auto watch = [] { throw Error(Fault::peer_lost, "rank 1 died"); };
  EXPECT_EQ(fault_of([&] { communicator->wait(in(10s), watch); }), Fault::peer_lost);
  EXPECT_TRUE(gate_.is_cancelled);
}

TEST_F(Calls, AreCancelledByACallerThatHasFailed) {
  const auto communicator = make();
  gate_.is_open = false;
  communicator->start(all_reduce(), values_);
  communicator->abort();
  EXPECT_TRUE(gate_.is_cancelled);
  EXPECT_EQ(values_.use_count(), 1);
}

// Exchanges data with a peer whose elements are all larger by ten.
int swap_or_add_one(void* communicator, const lockstep_collective* call,
                    lockstep_engine_error* error) {
  if (static_cast<Operation>(call->operation) != Operation::all_to_all)
    return add_one(communicator, call, error);
  const auto* const mine = static_cast<const float*>(call->input.data);
  for (std::size_t i = 0; i < call->input.count; ++i)
    static_cast<float*>(call->output.data)[i] = mine[i] + 10;
  return 0;
}

TEST_F(Calls, SwapSmallBuffersBetweenTwoMembersIfTheEngineRequestsIt) {
  static lockstep_engine abi = table(Cancelling::at_once);
  static const Engine swapping{.name = "gate", .path = {}, .version = {}, .abi = &abi};
  constexpr float swapped = 1 + 11;
  constexpr float own_sum = 1 + 1;
  abi.run = swap_or_add_one;
  abi.flags = LOCKSTEP_ENGINE_SWAPS;
  // Returns the sum of one element. Without a swap, the engine's own all_reduce adds one to the
  // first.
  const auto sum_of = [&](const std::vector<int>& members, std::size_t count) {
    const auto communicator = make(swapping, members);
    std::vector<float> values(count, 1);
    Collective collective = all_reduce();
    collective.signature.count = count;
    collective.output = {.data = values.data(), .count = count};
    communicator->start(collective, nullptr);
    communicator->wait(in(10s), [] {});
    const float rest = values.front() == swapped ? swapped : 1;
    EXPECT_TRUE(std::all_of(values.begin() + 1, values.end(), [&](float v) { return v == rest; }));
    return values.front();
  };
  EXPECT_EQ(sum_of({0, 1}, 1), swapped);
  EXPECT_EQ(sum_of({0, 1}, 1 << 16), swapped);
  EXPECT_EQ(gate_.calls, 0);
  EXPECT_EQ(sum_of({0, 1}, (1 << 16) + 1), own_sum);
  EXPECT_EQ(sum_of({0, 1, 2}, 1), own_sum);
  abi.flags = 0;
  EXPECT_EQ(sum_of({0, 1}, 1), own_sum);
  EXPECT_EQ(gate_.calls, 3);
}

class CallsThatStay : public Calls, public testing::WithParamInterface<Cancelling> {};

TEST_P(CallsThatStay, KeepTheirMemory) {
  auto communicator = make(GetParam());
  EXPECT_FALSE(communicator->can_cancel());
  gate_.is_open = false;
  gate_.heeds_cancel = false;
  communicator->start(all_reduce(), values_);
  EXPECT_EQ(fault_of([&] { communicator->wait(in(50ms), [] {}); }), Fault::timeout);
  EXPECT_EQ(gate_.is_cancelled, GetParam() == Cancelling::late);
  communicator.reset();
  EXPECT_GT(values_.use_count(), 1);
  gate_.change(&Gate::is_open, true);
  for (const auto begin = Clock::now(); values_.use_count() > 1 && Clock::now() - begin < 10s;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(values_.use_count(), 1);
  EXPECT_EQ(values_->front(), 1);
}

using CallsAtExitDeathTest = Calls;

TEST_F(CallsAtExitDeathTest, LeaveTheProcessItsExitCodeAndNothingIsDestroyedUnderThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] { std::abort(); });  // Simulates an exit handler of an engine's library.
        auto communicator = make(Cancelling::never);
        gate_.is_open = false;
        communicator->start(all_reduce(), values_);
        communicator->expect_no_peers();
        communicator.reset();
        std::exit(69);
      },
      testing::ExitedWithCode(69), "");
}

INSTANTIATE_TEST_SUITE_P(OfEngines, CallsThatStay,
                         testing::Values(Cancelling::late, Cancelling::never));

}  // namespace
}  // namespace lockstep::comm::engine_communicator_test
