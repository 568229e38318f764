// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text.h"

#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace lockstep::base::text_test {
namespace {

constexpr const char* unknown = "\xEF\xBF\xBD";  // U+FFFD

TEST(CleanText, LeavesCleanTextAsItIs) {
  for (const std::string text : {"", "node1.cluster", "bj\xC3\xB6rn \xE2\x82\xAC \xF0\x9F\x98\x80",
                                 "\xC2\xA0", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF", "\xEF\xBF\xBD"})
    EXPECT_EQ(clean_text(text), text);
}

TEST(CleanText, HasNoControlCharacter) {
  EXPECT_EQ(clean_text("a\nb\r\tc\x1b[2Jd\x7f"), "a b  c [2Jd ");
  EXPECT_EQ(clean_text(std::string_view("a\0b", 3)), "a b");
  EXPECT_EQ(clean_text("\xC2\x80\xC2\x9B\xC2\x9F"), "\xC2\xBF\xC2\xBF\xC2\xBF");
}

TEST(CleanText, IsUtf8WhateverTheBytesWere) {
  for (const std::string bytes : {"\x80", "\x9b", "\xFF", "\xC2", "\xC0", "\xF5", "\xE2"})
    EXPECT_EQ(clean_text("a" + bytes + "b"), std::string("a") + unknown + "b");
  EXPECT_EQ(clean_text("\xE2\x82"), std::string(unknown) + unknown);
  for (const std::string three :
       {"\xE0\x9F\xBF", "\xED\xA0\x80", "\xC0\x80\x80"})  // Overlong, a surrogate, overlong.
    EXPECT_EQ(clean_text(three), std::string(unknown) + unknown + unknown);
  EXPECT_EQ(clean_text("\xF4\x90\x80\x80").size(), 12U) << "beyond the last character";
}

TEST(CleanText, IsCutBetweenCharacters) {
  EXPECT_EQ(clean_text("abc", 2), "ab");
  EXPECT_EQ(clean_text("a\xC3\xB6", 2), "a");
  EXPECT_EQ(clean_text("a\xC3\xB6", 3), "a\xC3\xB6");
  EXPECT_EQ(clean_text("\xFF\xFF", 5), unknown) << "a replacement counts with its own bytes";
  EXPECT_EQ(clean_text("abc", 0), "");
}

TEST(CleanText, DoesNotChangeWhenItIsCleanedAgain) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += std::string(3, static_cast<char>(byte)) + "x";
  for (std::size_t most = 0; most < all.size(); most += 7) {
    const std::string once = clean_text(all, most);
    EXPECT_LE(once.size(), most);
    EXPECT_EQ(clean_text(once, most), once);
  }
}

TEST(Ranges, NeighboursAreWrittenAsOne) {
  EXPECT_EQ(as_ranges({}), "");
  EXPECT_EQ(as_ranges({5}), "5");
  EXPECT_EQ(as_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(as_ranges({2147483647, 0}), "2147483647,0");
}

TEST(DifferingLine, IsTheFirstInWhichATextDiffersFromTheFirst) {
  EXPECT_FALSE(differing_line({"a\nb\n", "a\nb\n"}));
  const auto found = differing_line({"a\nb\n", "a\nb\n", "a\nc\n", "d\n"});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, 2U);
  EXPECT_EQ(found->line, 1U);
  EXPECT_EQ(found->first + found->other, "bc");
  EXPECT_EQ(differing_line({"a\n", ""})->other, "nothing more");
  EXPECT_EQ(differing_line({"a\n", "a"})->line, 1U);
}

TEST(ExceptionText, IsTypeAndTextWithoutLibTorchsBacktrace) {
  const auto text_of = [](const char* what) {
    return exception_text(std::make_exception_ptr(std::runtime_error(what)));
  };
  EXPECT_EQ(text_of("loss is nan"), "std::runtime_error: loss is nan");
  EXPECT_EQ(text_of("index 9 is out of range\nin self\n"
                    "Exception raised from run at /a/b.cpp:7 (most recent call first):\n"
                    "frame #0: c10::Error::Error() + 0x9d (0x7f in libc10.so)\n"),
            "std::runtime_error: index 9 is out of range\nin self");
}

}  // namespace
}  // namespace lockstep::base::text_test
