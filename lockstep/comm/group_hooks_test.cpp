// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_hooks.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/comm/group_state.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"

namespace lockstep::comm::group_hooks_test {
namespace {

// The one rank of a group, and its state as peers see it.
struct Alone {
  std::shared_ptr<ThreadPeers> peers =
      std::make_shared<ThreadPeers>(std::make_shared<ThreadTeam>(1), 0);
  ProcessGroup group = make(peers);

  std::uint64_t step() const { return peers->activity(0).step; }

  template <class Context = RankContext, class... Arguments>
  static ProcessGroup make(const std::shared_ptr<ThreadPeers>& peers, Arguments&... arguments) {
    ProcessGroup::State::Parts parts;
    parts.identity.name = "world";
    parts.rank_context = std::make_shared<Context>(
        std::shared_ptr<Activity>(peers, &peers->activity(0)), arguments...);
    parts.backend = std::make_unique<ShmBackend>(peers, "world", std::chrono::minutes(1));
    return GroupAccess::make(std::move(parts));
  }
};

TEST(Steps, AreShownAsTheProgramSetsThem) {
  const Alone rank;
  EXPECT_EQ(rank.step(), 0U);
  rank.group.set_step(1200);
  EXPECT_EQ(rank.step(), 1200U);
  rank.group.split(0).set_step(1201);
  EXPECT_EQ(rank.step(), 1201U);
}

TEST(Steps, AreCountedUnlessTheProgramSetsThem) {
  const Alone rank;
  count_step(rank.group);
  count_step(rank.group.split(0));
  EXPECT_EQ(rank.step(), 2U);
}

TEST(Steps, AreNotCountedOnceTheProgramSetsThemOnAnyGroup) {
  const Alone rank;
  const ProcessGroup part = rank.group.split(0);
  count_step(rank.group);
  part.set_step(40);
  count_step(rank.group);
  count_step(part);
  EXPECT_EQ(rank.step(), 40U);
}

TEST(Steps, AreMisuseOnADestroyedGroup) {
  Alone rank;
  destroy_process_group(rank.group);
  EXPECT_EQ(test::fault_of([&] { rank.group.set_step(1); }), Fault::misuse);
  EXPECT_EQ(test::fault_of([&] { count_step(rank.group); }), Fault::misuse);
}

class ExitReporter final : public RankContext {
 public:
  ExitReporter(std::shared_ptr<Activity> activity, int& reports)
      : RankContext(std::move(activity)), reports_(reports) {}

 private:
  void report_exit() override { ++reports_; }

  int& reports_;
};

TEST(WhyItEnds, IsReportedOnceForAllGroupsOfARank) {
  int told = 0;
  const ProcessGroup group = Alone::make<ExitReporter>(
      std::make_shared<ThreadPeers>(std::make_shared<ThreadTeam>(1), 0), told);
  const ProcessGroup part = group.split(0);
  report_cause_of_exit(part);
  EXPECT_EQ(told, 1);
  report_cause_of_exit(group.split(0));
  report_cause_of_exit(group);
  EXPECT_EQ(told, 1);
}

TEST(LastActs, ComeInTheOppositeOrder) {
  const Alone rank;
  const ProcessGroup part = rank.group.split(0);
  std::string order;
  const auto act = [&](char name) {
    return std::make_shared<const std::function<void()>>([&order, name] { order += name; });
  };
  const auto first = act('1'), second = act('2'), of_part = act('p');
  before_end(rank.group, first);
  before_end(part, of_part);
  before_end(rank.group, second);
  ProcessGroup group = rank.group;
  destroy_process_group(group);
  EXPECT_EQ(order, "p21");
}

TEST(Attachments, AreMadeOnceForEachGroupAndType) {
  const Alone rank;
  const ProcessGroup part = rank.group.split(0), copy = part;
  const auto number = attachment_of<int>(part);
  EXPECT_EQ(attachment_of<int>(copy), number);
  EXPECT_NE(attachment_of<int>(rank.group), number);
  *attachment_of<double>(part) = 1;
  EXPECT_EQ(*number, 0);
}

TEST(Attachments, GoWithTheirGroup) {
  std::optional<Alone> rank(std::in_place);
  const std::weak_ptr<int> of_world = attachment_of<int>(rank->group);
  std::optional<ProcessGroup> part = rank->group.split(0);
  const std::weak_ptr<int> of_part = attachment_of<int>(*part);
  part.reset();  // The last handle.
  EXPECT_TRUE(of_part.expired());
  const ProcessGroup other = rank->group.split(0);
  const std::weak_ptr<int> of_other = attachment_of<int>(other);
  destroy_process_group(rank->group);
  EXPECT_TRUE(of_world.expired());
  EXPECT_TRUE(of_other.expired());
  EXPECT_EQ(test::fault_of([&] { attachment_of<int>(other); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::comm::group_hooks_test
