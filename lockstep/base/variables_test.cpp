// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/variables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep::base::variables_test {
namespace {

TEST(Variables, RecogniseTheServiceLinksOfKubernetes) {
  for (const char* link : {"tcp://10.0.0.1:29400", "udp://10.0.0.1:53", "sctp://10.0.0.1:9999",
                           "tcp://[fd00::1]:29400"})
    EXPECT_TRUE(is_service_link(link)) << link;
  for (const char* other : {"", "29400", "node0:29400", "tcp://", "tcp://:1", "tcp://10.0.0.1",
                            "tcp://10.0.0.1:", "tcp://10.0.0.1:port", "tcp://10.0.0.1:294000",
                            "http://10.0.0.1:80", "/data/tcp://a:1"})
    EXPECT_FALSE(is_service_link(other)) << other;
}

TEST(Variables, CountAsUnsetWhenEmpty) {
  ::setenv("LOCKSTEP_TEST_EMPTY", "", 1);
  EXPECT_EQ(read_variable("LOCKSTEP_TEST_EMPTY"), nullptr);
  EXPECT_EQ(read_variable("LOCKSTEP_TEST_UNSET"), nullptr);
  ::setenv("LOCKSTEP_TEST_EMPTY", "7", 1);
  EXPECT_STREQ(read_variable("LOCKSTEP_TEST_EMPTY"), "7");
  ::unsetenv("LOCKSTEP_TEST_EMPTY");
}

TEST(Variables, WarnOnceOfEachServiceLinkWithItsNameAndValue) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warning);
    warnings.emplace_back(text);
  });
  for (const char* name : {"LOCKSTEP_TEST_A_PORT", "LOCKSTEP_TEST_A_PORT", "LOCKSTEP_TEST_B_PORT"})
    EXPECT_EQ(accept_variable(name, "tcp://10.0.0.1:29400"), nullptr);
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("LOCKSTEP_TEST_A_PORT=tcp://10.0.0.1:29400"), std::string::npos);
  EXPECT_NE(warnings[1].find("LOCKSTEP_TEST_B_PORT=tcp://10.0.0.1:29400"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::base::variables_test
