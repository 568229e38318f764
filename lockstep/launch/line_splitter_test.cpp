// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/launch/output.h"

namespace lockstep::launch::line_splitter_test {
namespace {

std::vector<std::string> segments(bool statuses, const std::vector<std::string>& chunks,
                                  bool finish = true) {
  std::vector<std::string> found;
  const auto receive = [&](const LineSplitter::Segment& segment) {
    found.emplace_back(1, segment.status ? '~' : '=');
    found.back() += segment.text;
  };
  LineSplitter splitter(statuses);
  for (const std::string& chunk : chunks) splitter.add(chunk, receive);
  if (finish) splitter.finish(receive);
  return found;
}

using Segments = std::vector<std::string>;

TEST(LineSplitter, JoinsWhatWasReadInChunks) {
  EXPECT_EQ(segments(false, {"a", "b\nc", "\n", "\nd\n"}), (Segments{"=ab", "=c", "=", "=d"}));
}

TEST(LineSplitter, TheLastLineNeedsNoNewline) {
  EXPECT_EQ(segments(false, {"a\nb"}, /*finish=*/false), (Segments{"=a"}));
  EXPECT_EQ(segments(false, {"a\nb"}), (Segments{"=a", "=b"}));
  EXPECT_EQ(segments(false, {}), (Segments{}));
}

TEST(LineSplitter, CutsALineThatIsTooLong) {
  const std::string longest(LineSplitter::longest_line, 'x');
  EXPECT_EQ(segments(false, {longest + "\n"}), (Segments{"=" + longest}));
  EXPECT_EQ(segments(false, {longest, "\n"}), (Segments{"=" + longest}));
  EXPECT_EQ(segments(false, {longest + "yz\n"}), (Segments{"=" + longest, "=yz"}));
  EXPECT_EQ(segments(false, {"ab" + longest + longest}),
            (Segments{"=ab" + longest.substr(2), "=" + longest, "=xx"}));
}

TEST(LineSplitter, ACarriageReturnIsOrdinaryWithoutATerminal) {
  EXPECT_EQ(segments(false, {"1%\r2%\r", "\n"}), (Segments{"=1%\r2%\r"}));
}

TEST(LineSplitter, ACarriageReturnEndsAStatus) {
  EXPECT_EQ(segments(true, {"1%\r", "2%\r"}), (Segments{"~1%", "~2%", "~"}));
  EXPECT_EQ(segments(true, {"1%\r", "\r"}), (Segments{"~1%", "~"}));
}

TEST(LineSplitter, ALineBesideAStatusLeavesItThere) {
  EXPECT_EQ(segments(true, {"1%\r", "log\n", "2%\r"}), (Segments{"~1%", "=log", "~2%", "~"}));
}

TEST(LineSplitter, AReturnAndANewlineEndALineTogether) {
  EXPECT_EQ(segments(true, {"done\r\n"}), (Segments{"~done", "~", "=done"}));
  EXPECT_EQ(segments(true, {"done\r", "\n"}), (Segments{"~done", "~", "=done"}));
}

TEST(LineSplitter, ABarThatBeginsWithItsReturnIsSeenAtOnceAndBecomesALine) {
  EXPECT_EQ(segments(true, {"\r1%", "\r2%\n", "next\n"}),
            (Segments{"~", "~1%", "~1%", "~", "=2%", "=next"}));
}

}  // namespace
}  // namespace lockstep::launch::line_splitter_test
