// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/differences.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::tensor::differences_test {
namespace {

using Lines = std::vector<std::string>;

std::string letter(int i) { return {static_cast<char>('a' + i)}; }

Facts fact(const std::string& value) { return {{"x", value}}; }

TEST(Differences, FactsComeBackFromTheirEncoding) {
  const Facts facts{{"a", "1"}, {"", ""}, {"b", ""}, {"a", "2\n"}};
  EXPECT_EQ(decode_facts(encode(facts)), facts);
  EXPECT_EQ(decode_facts(encode({})), Facts{});
}

TEST(Differences, OmitEqualValues) {
  const Facts facts{{"a", "1"}, {"b", "2"}};
  EXPECT_EQ(differing_values({facts, facts, facts}), Lines{});
  EXPECT_EQ(differing_tensors({facts, facts, facts}), Lines{});
  EXPECT_EQ(differing_tensors({facts, {{"b", "2"}, {"a", "1"}}}), Lines{});
}

TEST(Differences, ValuesAreNamedWithTheirRanks) {
  EXPECT_EQ(differing_values({fact("1"), fact("2"), fact("1")}),
            Lines{"x 1 on ranks 0, 2; 2 on rank 1"});
  EXPECT_EQ(differing_values({fact("1"), {}}), Lines{"x 1 on rank 0; none on rank 1"});
}

TEST(Differences, ManyRanksAreNamedAsRanges) {
  std::vector<Facts> facts(9, fact("1"));
  facts[0] = facts[7] = facts[8] = fact("2");
  EXPECT_EQ(differing_values(facts), Lines{"x 2 on ranks 0, 7, 8; 1 on ranks 1-6"});
}

TEST(Differences, TheMinorityIsNamedFirst) {
  EXPECT_EQ(differing_tensors({fact("1"), fact("1"), fact("2")}),
            Lines{"rank 2 differs from ranks 0, 1 in 1 tensor: x"});
  EXPECT_EQ(differing_tensors({fact("2"), fact("1"), fact("1")}),
            Lines{"rank 0 differs from ranks 1, 2 in 1 tensor: x"});
  EXPECT_EQ(differing_tensors({fact("2"), fact("1"), fact("2"), fact("1"), fact("2")}),
            Lines{"ranks 1, 3 differ from ranks 0, 2, 4 in 1 tensor: x"});
}

TEST(Differences, WithoutAMajorityAllPartsAreNamed) {
  EXPECT_EQ(differing_tensors({fact("1"), fact("2")}),
            Lines{"rank 0 differs from rank 1 in 1 tensor: x"});
  EXPECT_EQ(differing_tensors({fact("1"), fact("2"), fact("3")}),
            Lines{"rank 0 differs from rank 1 and from rank 2 in 1 tensor: x"});
}

TEST(Differences, TensorsThatDivideTheRanksAlikeShareALine) {
  Facts zeros;
  Facts ones;
  for (int i = 0; i < 9; ++i) {
    zeros.emplace_back(letter(i), "0");
    ones.emplace_back(letter(i), i == 2 ? "0" : "1");
  }
  Facts other = zeros;
  other[2].second = "1";
  EXPECT_EQ(differing_tensors({zeros, ones, other}),
            (Lines{"rank 1 differs from ranks 0, 2 in 8 tensors: a, b, d, e, f and 3 more",
                   "rank 2 differs from ranks 0, 1 in 1 tensor: c"}));
}

TEST(Differences, LinesAreFew) {
  Facts facts;
  Facts others;
  for (int i = 0; i < 9; ++i) {
    facts.emplace_back(letter(i), "0");
    others.emplace_back(letter(i), "1");
  }
  const Lines lines = differing_values({facts, others});
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines.back(), "and 2 more such lines");
}

TEST(Differences, ANameGivenTwiceCountsTwice) {
  EXPECT_EQ(differing_tensors({{{"a", "1"}, {"a", "2"}}, {{"a", "1"}, {"a", "3"}}}),
            Lines{"rank 0 differs from rank 1 in 1 tensor: a"});
}

}  // namespace
}  // namespace lockstep::tensor::differences_test
