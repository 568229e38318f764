// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/train/progress_line.h"

namespace lockstep::train::progress_test {
namespace {

using namespace std::chrono_literals;

ProgressState halfway() {
  return {.label = "epoch 1/5",
          .steps = 394,
          .total_steps = 938,
          .samples = 25216,
          .elapsed = 2050ms,
          .loss = 0.41234};
}

// The output of a Progress after `steps` of 100 steps with `pause` between them.
std::string written(int steps, std::chrono::milliseconds pause, bool enabled = true) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  {
    Progress progress(100, {.enabled = enabled, .label = "train", .fd = ends[1]});
    for (int step = 0; step < steps; ++step) {
      progress.step(64, 0.5);
      std::this_thread::sleep_for(pause);
    }
  }
  ::close(ends[1]);
  std::string text(1 << 16, '\0');
  text.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  ::close(ends[0]);
  return text;
}

class OnTerminal {
 public:
  explicit OnTerminal(const char* columns) { ::setenv("LOCKSTEP_TERMINAL", columns, 1); }
  ~OnTerminal() { ::unsetenv("LOCKSTEP_TERMINAL"); }
};

TEST(ProgressLine, ShowsProgressSpeedAndRemainingTime) {
  EXPECT_EQ(progress_line(halfway()),
            "epoch 1/5: 394/938 steps (42%), 12300 samples/s, loss 0.4123, 0:03 left");
}

TEST(ProgressLine, EndsWithThePhases) {
  ProgressState state = halfway();
  state.phases = "data 3 %, wait 5 % for rank 3";
  EXPECT_EQ(progress_line(state),
            "epoch 1/5: 394/938 steps (42%), 12300 samples/s, loss 0.4123, 0:03 left, data 3 %, "
            "wait 5 % for rank 3");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(progress_line({.total_steps = 10}), "0/10 steps (0%)");
  EXPECT_EQ(progress_line({.steps = 5, .total_steps = 10, .elapsed = 2s}),
            "5/10 steps (50%), 2.5 steps/s, 0:02 left");
}

TEST(ProgressLine, ShowsTheTotalTimeAtTheEnd) {
  EXPECT_EQ(progress_line({.steps = 10, .total_steps = 10, .samples = 10, .elapsed = 4327s}),
            "10/10 steps (100%), 0.00231 samples/s, took 1:12:07");
  EXPECT_EQ(progress_line({.total_steps = 0}), "0/0 steps (100%), took 0:00");
}

TEST(ProgressLine, CountsNoTimeForWhatAnEarlierRunDid) {
  EXPECT_EQ(progress_line({.steps = 60, .total_steps = 100, .earlier_steps = 50, .elapsed = 2s}),
            "60/100 steps (60%), 5 steps/s, 0:08 left");
  EXPECT_EQ(progress_line({.steps = 50, .total_steps = 100, .earlier_steps = 50, .elapsed = 2s}),
            "50/100 steps (50%)");
}

TEST(ProgressLine, ReachesAHundredPercentOnlyAtTheEnd) {
  EXPECT_NE(progress_line({.steps = 99'999, .total_steps = 100'000}).find("(99%)"),
            std::string::npos);
}

TEST(ProgressLine, ShowsLossesThatAreNoNumbers) {
  auto state = halfway();
  state.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(progress_line(state).find("loss nan"), std::string::npos);
  state.loss = 1.5e-7;
  EXPECT_NE(progress_line(state).find("loss 1.5e-07"), std::string::npos);
}

TEST(ProgressBar, DrawsABarIfItFits) {
  EXPECT_EQ(progress_bar(halfway(), 90),
            "epoch 1/5  42% [#########..............] 394/938, 12300 samples/s, loss 0.4123, "
            "0:03 left");
}

TEST(ProgressBar, IsNeverAsWideAsTheTerminal) {
  for (int columns = 0; columns < 300; ++columns)
    EXPECT_LT(progress_bar(halfway(), columns).size(), std::max(columns, 2));
  EXPECT_EQ(progress_bar(halfway(), 60).find('['), std::string::npos);
  EXPECT_EQ(progress_bar(halfway(), 15), "epoch 1/5  42%");
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  const OnTerminal terminal("100");
  const std::string text = written(100, 5ms);
  const auto draws = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(draws, 3) << text;
  EXPECT_LE(draws, 50) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_NE(text.find("100% [####################"), std::string::npos) << text;
}

TEST(Progress, IsPlainLinesElsewhere) {
  const std::string text = written(100, 0ms);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.find("train: 100/100 steps (100%), "), 0U) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Progress, ReportsTheProgressOfALoopThatEndsEarly) {
  EXPECT_EQ(written(7, 0ms).find("train: 7/100 steps (7%), "), 0U);
  const OnTerminal terminal("100");
  const std::string drawn = written(7, 0ms);  // With earlier draws if a step was delayed.
  EXPECT_NE(drawn.find("\rtrain   7% ["), drawn.npos) << drawn;
}

TEST(Progress, WritesNothingWhereItIsNotEnabled) {
  EXPECT_EQ(written(100, 0ms, /*enabled=*/false), "");
}

TEST(Progress, DoesNotMindWhatCannotBeWritten) {
  Progress progress(1, {.fd = -1});
  EXPECT_NO_THROW(progress.step(1));
  EXPECT_THROW(Progress(-1), Error);
  EXPECT_THROW(Progress(1, {.done = 2}), Error);
}

}  // namespace
}  // namespace lockstep::train::progress_test
