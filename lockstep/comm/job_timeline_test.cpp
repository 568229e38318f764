// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/timeline/merge_timeline.h"
#include "lockstep/job/timeline/rank_timeline.h"
#include "lockstep/job/timeline_recorder.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::job_timeline_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

class JobTimeline : public ::testing::Test {
 public:
  JobTimeline() { ::setenv(TimelineRecorder::variable, folder().c_str(), 1); }
  ~JobTimeline() override { ::unsetenv(TimelineRecorder::variable); }

  std::filesystem::path folder() const { return scratch_.path() / "spans"; }

  std::optional<Fault> last_fault(int rank) const {
    const RankTimeline timeline =
        read_rank_timeline(folder() / TimelineRecorder::spans_name(/*attempt=*/0, rank));
    const auto& last = timeline.collectives.back();
    EXPECT_EQ(last.group, "world");
    EXPECT_LT(last.begin, last.end);
    return last.fault;
  }

 private:
  const test::ScratchDirectory scratch_;
};

const Ranks in_order("timeline: in order", [](const Rank&) {
  ProcessGroup world = init_process_group();
  world.barrier();
  destroy_process_group(world);
});

TEST_F(JobTimeline, LeavesOutTheRanksOfAnEarlierJobInItsFolder) {
  ASSERT_TRUE(test::all_succeeded(in_order.run(3)));
  ASSERT_TRUE(test::all_succeeded(in_order.run(2)));
  const TimelineSummary summary = merge_timeline({folder()}, folder() / "t.json");
  EXPECT_EQ(summary.ranks, 2);
  EXPECT_EQ(summary.failed, 0U);
  EXPECT_EQ(summary.other_jobs,
            std::vector{(folder() / TimelineRecorder::spans_name(0, 2)).string()});
}

const Ranks with_a_loss("timeline: with a loss", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  if (rank.rank == 1) ::raise(SIGKILL);
  EXPECT_EQ(fault_of([&] { world.barrier(); }), Fault::peer_lost);
});

TEST_F(JobTimeline, HasTheCollectiveThatARankDidNotComeTo) {
  EXPECT_EQ(with_a_loss.run(2).at(0).code, 0);
  EXPECT_EQ(last_fault(0), Fault::peer_lost);
}

const Ranks with_a_mismatch("timeline: with a mismatch", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto call = [&] {
    rank.rank == 0 ? world.barrier() : static_cast<void>(world.split(0, 1));
  };
  EXPECT_EQ(fault_of(call), Fault::mismatch);
});

TEST_F(JobTimeline, HasTheCollectiveOnWhichRanksDisagree) {
  ASSERT_TRUE(test::all_succeeded(with_a_mismatch.run(2)));
  for (const int rank : {0, 1}) EXPECT_EQ(last_fault(rank), Fault::mismatch);
}

}  // namespace
}  // namespace lockstep::comm::job_timeline_test
