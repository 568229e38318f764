// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/box_cover.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::checkpoint::box_cover_test {
namespace {

using Shape = std::vector<std::int64_t>;

BoxCover cover_of(const Shape& shape, const std::vector<std::pair<int, Box>>& boxes) {
  std::vector<RankBox> held;
  for (const auto& [rank, box] : boxes)
    held.push_back({rank, {.box = box, .strides = Shape(shape.size(), 1), .begin = 0}});
  return cover(shape, held);
}

std::string complaint_of(const Shape& shape, const std::vector<std::pair<int, Box>>& boxes) {
  const BoxCover result = cover_of(shape, boxes);
  EXPECT_TRUE(result.boxes.empty());
  return result.complaint;
}

std::vector<int> ranks_of(const BoxCover& cover) {
  EXPECT_EQ(cover.complaint, "");
  std::vector<int> ranks;
  for (const RankBox& each : cover.boxes) ranks.push_back(each.rank);
  return ranks;
}

TEST(ACoverOfBoxes, HasEachElementOnce) {
  EXPECT_EQ(ranks_of(cover_of({4, 4}, {{1, {{0, 2}, {4, 2}}}, {0, {{0, 0}, {4, 2}}}})),
            (std::vector<int>{0, 1}));
  EXPECT_EQ(ranks_of(cover_of({0, 4}, {})), (std::vector<int>{}));
  EXPECT_EQ(cover_of({3, 3}, {{0, {{0, 0}, {1, 2}}},
                              {1, {{0, 2}, {2, 1}}},
                              {2, {{2, 1}, {1, 2}}},
                              {3, {{1, 0}, {2, 1}}},
                              {4, {{1, 1}, {1, 1}}}})
                .boxes.size(),
            5u);
}

TEST(ACoverOfBoxes, LeavesOutCopies) {
  const Box left{.offsets = {0, 0}, .sizes = {4, 2}}, right{.offsets = {0, 2}, .sizes = {4, 2}};
  EXPECT_EQ(ranks_of(cover_of({4, 4}, {{0, left}, {1, right}, {2, left}, {3, right}})),
            (std::vector<int>{0, 1}));
  const Box all{.offsets = {0, 0}, .sizes = {4, 4}};
  EXPECT_EQ(ranks_of(cover_of({4, 4}, {{0, left}, {1, right}, {2, all}})), (std::vector<int>{2}));
}

TEST(ACoverOfBoxes, RefusesAnyOtherOverlap) {
  const Box left{.offsets = {0, 0}, .sizes = {4, 3}}, right{.offsets = {0, 2}, .sizes = {4, 2}};
  EXPECT_EQ(complaint_of({4, 4}, {{1, right}, {0, left}}),
            "lies on ranks 0 and 1 in parts that overlap: offsets [0, 0] and sizes [4, 3], "
            "offsets [0, 2] and sizes [4, 2]");
  EXPECT_EQ(complaint_of({4, 4}, {{0, left}, {0, left}}).substr(0, 20), "lies twice on rank 0");
  EXPECT_EQ(complaint_of({4}, {{2, {{0}, {3}}}, {1, {{2}, {2}}}}),
            "lies on ranks 1 and 2 in parts that overlap");
}

TEST(ACoverOfBoxes, ReportsThePositionOfTheFirstGap) {
  EXPECT_EQ(complaint_of({4}, {{0, {{0}, {3}}}}),
            "is incomplete: no rank has its elements from 3 on");
  const auto gap = [](const std::vector<std::pair<int, Box>>& boxes) {
    const std::string text = complaint_of({3, 3}, boxes);
    return text.substr(text.rfind("element "));
  };
  EXPECT_EQ(gap({}), "element [0, 0]");
  EXPECT_EQ(gap({{0, {{0, 0}, {3, 2}}}}), "element [0, 2]");
  EXPECT_EQ(gap({{0, {{0, 0}, {1, 3}}}, {1, {{1, 0}, {2, 1}}}, {2, {{1, 2}, {2, 1}}}}),
            "element [1, 1]");
  EXPECT_EQ(gap({{0, {{0, 0}, {2, 3}}}, {1, {{2, 0}, {1, 2}}}}), "element [2, 2]");
}

TEST(ACoverOfBoxes, IsFoundQuicklyForManyRanks) {
  std::vector<std::pair<int, Box>> columns;
  for (int rank = 0; rank < 20000; ++rank) columns.push_back({rank, {{0, rank}, {7, 1}}});
  EXPECT_EQ(cover_of({7, 20000}, columns).boxes.size(), 20000u);
}

}  // namespace
}  // namespace lockstep::checkpoint::box_cover_test
