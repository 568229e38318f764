// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/file_format.h"

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>

namespace lockstep::base::file_format_test {
namespace {

std::optional<FileFormat> format_of(const std::string& bytes) {
  return file_format_of(std::as_bytes(std::span(bytes)));
}

std::string tar() {
  std::string header(512, '\0');
  header.replace(0, 5, "model");
  header.replace(148, 8, 8, ' ');
  int sum = 0;
  for (const char each : header) sum += static_cast<unsigned char>(each);
  header.replace(148, 7, std::string("000") + "    ");
  for (int place = 153; sum > 0; --place, sum /= 8)
    header[static_cast<std::size_t>(place)] = static_cast<char>('0' + sum % 8);
  return header;
}

TEST(FileFormat, IsFoundByTheContents) {
  struct Case {
    std::string bytes;
    FileKind kind;
    const char* text;
  };
  const Case cases[]{
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", FileKind::pointer,
       "not the file itself: download the file, with git lfs pull"},
      {"PK\3\4archive/data.pkl", FileKind::pickle, "zip"},
      {std::string("\x80\2}q\0.", 6), FileKind::pickle, "a pickle of Python"},
      {std::string("\x80\4\x95\1\0\0\0\0\0\0\0N.", 13), FileKind::pickle, "a pickle of Python"},
      {"(dp0\n.", FileKind::pickle, "a pickle of Python"},
      {std::string("\x1f\x8b\x08\0", 4), FileKind::compressed, "compressed by gzip: gunzip it"},
      {tar(), FileKind::tar, "a tar archive"},
      {std::string("\2\0\0\0\0\0\0\0{}", 10), FileKind::safetensors, "safetensors"},
      {"<!DOCTYPE html>\n", FileKind::text, "a text"}};
  for (const Case& each : cases) {
    const auto format = format_of(each.bytes);
    ASSERT_TRUE(format) << each.text;
    EXPECT_EQ(format->kind, each.kind) << each.text;
    EXPECT_NE(describe(*format).find(each.text), std::string::npos) << describe(*format);
  }
}

TEST(FileFormat, IsUnknownForNumbersAndAnEmptyFile) {
  EXPECT_FALSE(format_of(""));
  EXPECT_FALSE(format_of(std::string("\1\0\2\0", 4)));
}

}  // namespace
}  // namespace lockstep::base::file_format_test
