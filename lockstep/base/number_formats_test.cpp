// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/number_formats.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep::base::number_formats_test {
namespace {

using Names = std::vector<std::string>;

TEST(NumberFormats, AreReadFromTheFlagsOfTheFirstProcessor) {
  const NumberFormats found = number_formats_in(
      "processor\t: 0\nmodel name\t: flags of many\nflags\t\t: fpu avx512_bf16 avx512f\n\n"
      "processor\t: 1\nflags\t\t: fpu avx512_fp16\n");
  EXPECT_EQ(found.bf16.found, Names{"avx512_bf16"});
  EXPECT_EQ(found.bf16.missing, Names{"amx_bf16"});
  EXPECT_TRUE(found.bf16.is_native());
  EXPECT_EQ(found.fp16.found, Names{});
  EXPECT_EQ(found.fp16.missing, (Names{"avx512_fp16", "amx_fp16"}));
  EXPECT_FALSE(found.fp16.is_native());
}

TEST(NumberFormats, AFlagIsAWholeWord) {
  EXPECT_FALSE(number_formats_in("flags : avx512_bf16x xamx_bf16\n").bf16.is_native());
  EXPECT_TRUE(number_formats_in("flags : x amx_fp16").fp16.is_native()) << "at the end";
}

TEST(NumberFormats, TextWithoutFlagsHasNone) {
  for (const char* const text : {"", "\n", "flags", "flags:", "Features : fp asimd bf16\n"}) {
    const NumberFormats found = number_formats_in(text);
    EXPECT_FALSE(found.bf16.is_native()) << text;
    EXPECT_EQ(found.fp16.missing.size(), 2U) << text;
  }
}

TEST(NumberFormats, MatchTheCpuinfoFileOfThisHost) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_NE(text, "");
  EXPECT_EQ(number_formats().bf16.found, number_formats_in(text).bf16.found);
  EXPECT_EQ(number_formats().bf16.is_native(),
            text.find(" avx512_bf16 ") != text.npos || text.find(" amx_bf16 ") != text.npos);
}

}  // namespace
}  // namespace lockstep::base::number_formats_test
