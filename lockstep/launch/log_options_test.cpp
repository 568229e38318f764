// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/log_options.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::log_options_test {
namespace {

TEST(LogOptions, OneNumberIsForAllLocalRanks) {
  for (const auto& [text, streams] : {std::pair{"0", Streams::none},
                                      {"1", Streams::out},
                                      {"2", Streams::err},
                                      {"3", Streams::both}}) {
    EXPECT_EQ(parse_streams(text).of(0), streams) << text;
    EXPECT_EQ(parse_streams(text).of(7), streams) << text;
  }
}

TEST(LogOptions, LocalRanksThatAreNotNamedHaveNone) {
  const StreamChoice choice = parse_streams("0:1,12:3");
  EXPECT_EQ(choice.of(0), Streams::out);
  EXPECT_EQ(choice.of(12), Streams::both);
  EXPECT_EQ(choice.of(1), Streams::none);
}

TEST(LogOptions, WhatIsNeitherIsRefusedAndQuoted) {
  for (const std::string text : {"", "4", "-1", "03", "out", "0:", ":1", "0:4", "0:1,", ",0:1",
                                 "0:1,1", "0:1:2", "0:1 ", "-1:1", "99999999999:1", "0:1,0:2"}) {
    try {
      parse_streams(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::misuse);
      EXPECT_NE(std::string(error.what()).find("'" + text + "'"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::log_options_test
