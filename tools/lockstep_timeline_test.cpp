// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/base/text_file.h"
#include "lockstep/job/timeline_recorder.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_timeline_test {
namespace {

class LockstepTimeline : public ::testing::Test {
 public:
  Finished merge() const {
    return run_command({LOCKSTEP, "timeline", scratch_.path(), "--out", path("t.json")});
  }

  std::string path(const std::string& name) const { return scratch_.path() / name; }
  std::string spans(int rank) const { return path(TimelineRecorder::spans_name(0, rank)); }

  void record(int rank, std::uint64_t job) const {
    const TimelineRecorder recorder({.folder = scratch_.path(), .job = job, .rank = rank});
  }

 private:
  const ScratchDirectory scratch_;
};

TEST_F(LockstepTimeline, NamesFilesOfOtherJobs) {
  for (const int rank : {0, 1}) record(rank, /*job=*/1);
  record(0, /*job=*/2);
  const Finished done = merge();
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.err, "lockstep timeline: left out: " + spans(1) + ": it is of another job\n");
  EXPECT_EQ(done.out, path("t.json") +
                          ": 1 rank, 0 phases, 0 collectives, 0 arrows; 1 file of other jobs left "
                          "out\n");
}

TEST_F(LockstepTimeline, NamesFilesThatCannotBeRead) {
  record(0, /*job=*/1);
  write_file(spans(1), "short");
  const Finished done = merge();
  EXPECT_EQ(done.code, 65);
  EXPECT_EQ(done.err,
            "lockstep timeline: left out: " + spans(1) + ": it is too short for a rank's spans\n");
  EXPECT_TRUE(std::filesystem::exists(path("t.json"))) << "the other rank is in it";
}

TEST_F(LockstepTimeline, EndsWithALineAndAnExitCodeForEachMistake) {
  const auto expect = [&](const Finished& done, int code, const std::string& text) {
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_EQ(done.err, "lockstep timeline: " + text + "\n");
  };
  expect(merge(), 64, "the folders have no spans of ranks");
  write_file(spans(0), "short");
  expect(merge(), 65,
         "no file of spans can be read: " + spans(0) + ": it is too short for a rank's spans");
  record(0, /*job=*/1);
  expect(run_command({LOCKSTEP, "timeline", "/no/such/folder", "--out", path("t.json")}), 71,
         "listing folder /no/such/folder: No such file or directory");
  expect(run_command({LOCKSTEP, "timeline"}), 64,
         "folder is required; see lockstep timeline --help");
}

}  // namespace
}  // namespace lockstep::test::lockstep_timeline_test
