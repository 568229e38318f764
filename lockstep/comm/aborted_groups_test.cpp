// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"

namespace lockstep::comm::aborted_groups_test {
namespace {

using namespace std::chrono_literals;

void run_on_backends(
    const std::function<void(int rank, std::unique_ptr<ShmBackend>, Activity&)>& body) {
  const auto team = std::make_shared<ThreadTeam>(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto peers = std::make_shared<ThreadPeers>(team, rank);
      body(rank, std::make_unique<ShmBackend>(peers, "world", 1min), peers->activity(rank));
    });
}

AbortReason learned_from(const std::function<void()>& call) {
  try {
    call();
  } catch (const GroupAborted& error) {
    EXPECT_EQ(error.ranks(), error.why().ranks);
    return error.why();
  }
  ADD_FAILURE() << "nobody has given the group up";
  return {};
}

TEST(AbortReason, TruncatesItsRanksToFitInSharedMemory) {
  run_on_backends([](int rank, std::unique_ptr<ShmBackend> backend, Activity&) {
    std::vector<int> many(100);
    std::iota(many.begin(), many.end(), 0);
    if (rank == 0)
      backend->abort({.fault = Fault::timeout, .rank = 0, .ranks = many, .reason = "why"});
    while (rank == 1 && !backend->pipes().is_aborted()) std::this_thread::yield();
    const AbortReason why = learned_from([&] { backend->throw_if_over("barrier"); });
    EXPECT_EQ(why.rank, 0);
    EXPECT_EQ(why.reason, "why");
    EXPECT_EQ(why.ranks.size(), most_blamed);
    EXPECT_EQ(why.more, 36);
  });
}

// Rank 0 of a team of two, with a group of both in which it shares memory with no other rank.
class PartOfPair final : public ThreadPeers {
 public:
  using ThreadPeers::ThreadPeers;
  int size() const override { return 1; }
  bool is_part_of_group() const override { return true; }
  void throw_if_lost(std::string_view context) override {
    asked_for_losses = true;
    ThreadPeers::throw_if_lost(context);
  }

  std::atomic<bool> asked_for_losses{false};
};

// The reason of rank 1 arrives after its loss was found, because rank 0's connection thread has not
// run meanwhile.
AbortReason learned_after_the_loss(const AbortReason& late) {
  const auto team = std::make_shared<ThreadTeam>(2);
  const auto peers = std::make_shared<PartOfPair>(team, 0);
  ShmBackend backend(peers, "world", 1min);
  team->lose(1);
  peers->asked_for_losses = false;
  std::jthread connections([&] {
    while (!peers->asked_for_losses) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);  // Far less than rank 0 waits.
    backend.abort_too(late);
  });
  return learned_from([&] { backend.throw_if_over("barrier"); });
}

TEST(AbortReason, AReasonThatComesAfterTheLossOfItsSenderIsReported) {
  for (const Fault fault : {Fault::timeout, Fault::mismatch, Fault::aborted}) {
    const AbortReason why = learned_after_the_loss(
        {.fault = fault, .rank = 1, .ranks = {1}, .call = "barrier #2", .reason = "why"});
    EXPECT_EQ(why.fault, fault);
    EXPECT_EQ(why.reason, "why");
  }
}

class Reporter final : public RankContext {
 public:
  Reporter(std::shared_ptr<Activity> activity, std::optional<Failure>& reported)
      : RankContext(std::move(activity)), reported_(reported) {}
  void report_break(Failure failure) override { reported_ = std::move(failure); }

 private:
  std::optional<Failure>& reported_;
};

// The group is ranks 4 and 7 of the job.
TEST(AbortReason, RanksThatAGroupDoesNotHaveAreBlamedForNothing) {
  run_on_backends([](int rank, std::unique_ptr<ShmBackend> backend, Activity& activity) {
    std::optional<Failure> told;
    ProcessGroup::State::Parts parts;
    parts.identity = {.name = "world", .rank = rank, .size = 2, .members = {4, 7}};
    parts.rank_context =
        std::make_shared<Reporter>(std::shared_ptr<Activity>(&activity, [](Activity*) {}), told);
    backend->abort({.fault = Fault::timeout,
                    .rank = 2'000'000'000,
                    .ranks = {1, 2, 2'000'000'000},
                    .reason = "why"});
    parts.backend = std::move(backend);
    const ProcessGroup group = GroupAccess::make(std::move(parts));
    EXPECT_EQ(test::fault_of([&] { group.barrier(); }), Fault::timeout);
    ASSERT_TRUE(told);
    EXPECT_EQ(told->ranks, std::vector<int>{7});
    EXPECT_EQ(told->rank, 7);
    EXPECT_EQ(told->detected_by, -1);
  });
}

}  // namespace
}  // namespace lockstep::comm::aborted_groups_test
