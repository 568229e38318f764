// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_steps.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "lockstep/job/host_session.h"
#include "tests/ranks.h"
#include "tests/rigs/elastic_options.h"
#include "tests/soon.h"

namespace lockstep::comm::elastic_steps_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::elastic_options;
using test::Rank;
using test::Ranks;

// Its state is one number: the sum of the numbers of ranks in all steps.
class Objects final : public TrainingObjects {
 public:
  void copy() override { ++copied; }
  void make(ProcessGroup& group, bool restores) override {
    ++made;
    restored += restores ? 1 : 0;
    group_ = &group;
  }
  void require_whole(ProcessGroup&) override {}
  void send(ProcessGroup& group, int to) override {
    ++sent;
    group.send(buffer(state), to);
  }
  void receive(ProcessGroup& group, int from) override {
    ++received;
    group.recv(buffer(state), from);
  }

  void compute() {
    sum_ = 1;
    group_->all_reduce(buffer(sum_));
  }
  void apply() { state += sum_; }

  int copied = 0;
  int made = 0;
  int restored = 0;
  int sent = 0;
  int received = 0;
  float state = 0;

 private:
  static Buffer buffer(float& value) { return {.data = &value, .count = 1}; }

  ProcessGroup* group_ = nullptr;
  float sum_ = 0;
};

bool step(
    ElasticSteps& steps, Objects& objects, const std::function<void()>& before = [] {}) {
  return steps.step(
      [&] {
        before();
        objects.compute();
      },
      [&] { objects.apply(); });
}

// Process 3 comes in place of rank 1.
const Ranks joins("a rank is replaced", [](const Rank& process) {
  const bool is_new = process.rank == 3;
  const Rank rank{is_new ? 1 : process.rank, 3, process.scratch};
  if (is_new) await_file(rank.scratch / "died");
  Objects objects;
  ElasticSteps steps(objects, elastic_options(rank, is_new ? 1 : 0));
  steps.begin();
  const auto dies = [&] {
    if (process.rank != 1 || steps.steps() != 5) return;
    std::ofstream(rank.scratch / "died");
    ::raise(SIGKILL);
  };
  while (steps.steps() < 6 || steps.changes() == 0 || steps.group().size() < 3)
    ASSERT_TRUE(step(steps, objects, dies));
  float least = objects.state;
  steps.group().all_reduce({.data = &least, .count = 1}, ReduceOp::min);
  EXPECT_EQ(objects.state, least);
  EXPECT_EQ(objects.sent, rank.rank == 0 ? 1 : 0);
  EXPECT_EQ(objects.received, is_new ? 1 : 0) << "only the new process needs the state";
  EXPECT_GE(objects.made, is_new ? 1 : 2);
  EXPECT_EQ(objects.restored, objects.made - 1);
  EXPECT_EQ(steps.scale(), 1);
});

TEST(ElasticSteps, SendsTheStateOnlyToProcessesThatJoin) {
  const auto exits = joins.run(4);
  for (std::size_t rank : {0, 2, 3}) EXPECT_EQ(exits[rank].code, 0) << exits[rank].output;
}

const Ranks told_to_leave("a replacement gets SIGTERM", [](const Rank& process) {
  const Rank rank{0, 1, process.scratch};
  if (process.rank == 1) await_file(rank.scratch / "started");
  Objects objects;
  ElasticSteps steps(objects, elastic_options(rank, process.rank));
  if (process.rank == 1)
    std::thread([] {
      while (!keeps_preemption_signals()) std::this_thread::sleep_for(5ms);
      ::kill(::getpid(), SIGTERM);
    }).detach();
  steps.begin();
  std::ofstream(rank.scratch / "started");
  if (process.rank == 0) {
    await_file(rank.scratch / "left");
    EXPECT_TRUE(step(steps, objects));
    return;
  }
  EXPECT_TRUE(steps.has_left());
  EXPECT_FALSE(step(steps, objects));
  EXPECT_EQ(objects.made, 0);
  std::ofstream(rank.scratch / "left");
});

TEST(ElasticSteps, AProcessThatWaitsToJoinLeavesOnSigterm) {
  EXPECT_TRUE(all_succeeded(told_to_leave.run(2)));
}

// Its state is the sum, over all steps, of the size of a subgroup.
class Halves final : public TrainingObjects {
 public:
  void copy() override {}
  void make(ProcessGroup& group, bool /*restores*/) override {
    half_ = half_ ? shrink(*half_, group) : group.split(group.rank() % 2);
  }
  void require_whole(ProcessGroup&) override {}
  void send(ProcessGroup&, int) override {}
  void receive(ProcessGroup&, int) override {}

  void compute() {
    sum_ = 1;
    half_->all_reduce({.data = &sum_, .count = 1});
  }
  void apply() { state += sum_; }

  float state = 0;

 private:
  std::optional<ProcessGroup> half_;
  float sum_ = 0;
};

const Ranks in_halves("ranks of subgroups die", [](const Rank& rank) {
  Halves halves;
  ElasticSteps steps(halves, elastic_options(rank));
  steps.begin();
  while (steps.steps() < 10) {
    const auto compute = [&] {
      if (rank.rank == 2 && steps.steps() == 3) ::raise(SIGKILL);
      if (rank.rank == 3 && steps.steps() == 6) ::raise(SIGKILL);
      halves.compute();
    };
    ASSERT_TRUE(steps.step(compute, [&] { halves.apply(); }));
  }
  EXPECT_EQ(halves.state, rank.rank % 2 == 0 ? 3 * 3 + 7 * 2 : 6 * 2 + 4 * 1);
});

TEST(ElasticSteps, SubgroupsOfATrainingContinueWithoutLostRanks) {
  const auto exits = in_halves.run(5);
  for (std::size_t rank : {0, 1, 4}) EXPECT_EQ(exits[rank].code, 0) << exits[rank].output;
  for (std::size_t rank : {2, 3}) EXPECT_EQ(exits[rank].signal, SIGKILL) << exits[rank].output;
}

}  // namespace
}  // namespace lockstep::comm::elastic_steps_test
