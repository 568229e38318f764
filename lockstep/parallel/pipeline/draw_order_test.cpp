// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/simulate_order.h"
#include "tests/rigs/random_pipeline_order.h"

namespace lockstep::parallel::draw_order_test {
namespace {

using enum PipelineSchedule;
using test::random_pipeline_order;

SimulatedPipeline simulated(PipelineSchedule schedule, const PipelineShape& shape,
                            const PipelineStageCost& cost = {}) {
  return simulate(make_pipeline_order(schedule, shape), {cost});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DrawText, ActionsAreAsLongAsTheyTake) {
  EXPECT_EQ(draw_text(simulated(one_f_one_b, {2, 3})),
            "rank 0 F0 F1 ......B0--- F2 B1--- ...B2---\n"
            "rank 1 ...F0 B0--- F1 B1--- F2 B2--- ......\n"
            "time   0     2     4     6     8     10    12\n");
  EXPECT_EQ(draw_text(simulated(zero_bubble, {2, 2}), 24),
            "rank 0 F0F1..I0W0I1W1\n"
            "rank 1 ..F0I0F1I1W0W1\n"
            "time   0         5\n");
}

TEST(DrawText, NamesTheStagesOfARankWithSeveralIfTheyFit) {
  const auto picture = simulated(zbv, {2, 1});
  EXPECT_EQ(draw_text(picture),
            "rank 0 0F0 ........3F0 3I0 3W0 ........0I0 0W0\n"
            "rank 1 ....1F0 2F0 ........2I0 2W0 1I0 1W0 ....\n"
            "time   0       2       4       6       8       10\n");
  EXPECT_EQ(lines_of(draw_text(picture, 40))[0], "rank 0 F0 ......F0 I0 W0 ......I0 W0");
  EXPECT_EQ(lines_of(draw_text(picture, 30))[0], "rank 0 F0....F0I0W0....I0W0");
  EXPECT_EQ(lines_of(draw_text(picture, 20))[0], "rank 0 F..FIW..IW");
}

TEST(DrawText, IsNeverWiderThanAsked) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const PipelineOrder order = random_pipeline_order(seed);
    const PipelineStageCost cost{.forward = 0.37,
                                 .backward_weight = 0.1 + 0.01 * static_cast<double>(seed % 7)};
    const auto picture = simulate(order, {cost});
    for (const int columns : {20, 60, 100, 400}) {
      const auto lines = lines_of(draw_text(picture, columns));
      EXPECT_EQ(lines.size(), order.actions.size() + 1);
      for (const std::string& line : lines) EXPECT_LE(line.size(), columns) << line;
    }
  }
  EXPECT_EQ(lines_of(draw_text(simulated(gpipe, {2, 4000}), -5))[0].size(), 17U);  // The minimum.
}

TEST(DrawText, NothingIsDrawnOfNothing) {
  EXPECT_EQ(draw_text({}), "time   0\n");
  const PipelineStageCost none{.forward = 0, .backward_input = 0, .backward_weight = 0};
  EXPECT_EQ(draw_text(simulated(gpipe, {2, 2}, none)), "rank 0\nrank 1\ntime   0\n");
  EXPECT_EQ(count_of(draw_svg({}), "<svg "), 1U);
}

// Whether elements are nested.
bool is_well_formed(const std::string& text) {
  std::vector<std::string> open;
  for (auto at = text.find('<'); at != text.npos; at = text.find('<', at + 1)) {
    const auto end = text.find('>', at);
    if (end == text.npos) return false;
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != tag.npos) return false;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() && text.find('&') == text.npos;
}

TEST(DrawSvg, HasEachActionOnceAndALegend) {
  const std::string picture = draw_svg(simulated(interleaved, {2, 4}));
  EXPECT_TRUE(is_well_formed(picture)) << picture;
  for (const char* action : {"0F3, ", "3B0, ", "2B2, "})
    EXPECT_EQ(count_of(picture, "<title>" + std::string(action)), 1U) << action;
  EXPECT_EQ(count_of(picture, "<title>"), 1U + 2 * 2 * 2 * 4);
  for (const char* part : {">forward<", ">backward<", ">idle: 11.1 %<", ">rank 1<", ">time<",
                           ">lighter: later stages of the rank<", ".F1 rect{", ".B1 rect{"})
    EXPECT_EQ(count_of(picture, part), 1U) << part;
  EXPECT_EQ(count_of(picture, "gradient<"), 0U) << "no backward is split";
  EXPECT_EQ(count_of(picture, "http"), 1U) << "the namespace alone: nothing is loaded";

  const std::string split = draw_svg(simulated(zero_bubble, {2, 4}));
  EXPECT_EQ(count_of(split, "gradient<"), 2U);
  EXPECT_EQ(count_of(split, ">backward<") + count_of(split, ">lighter"), 0U);
}

TEST(DrawSvg, IsWellFormedForAnyOrder) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const PipelineStageCost cost{.forward = 1e-5, .backward_input = 3, .send = 0.1};
    const std::string picture = draw_svg(simulate(random_pipeline_order(seed), {cost}));
    EXPECT_TRUE(is_well_formed(picture)) << picture;
    EXPECT_EQ(count_of(picture, "nan") + count_of(picture, "inf"), 0U);
  }
}

}  // namespace
}  // namespace lockstep::parallel::draw_order_test
