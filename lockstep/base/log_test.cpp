// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::log_test {
namespace {

using test::fault_of;

// Logs a line of each level in its own process, because only the first call reads the variable.
[[noreturn]] void log_all(const char* value) {
  ::setenv("LOCKSTEP_LOG", value, 1);
  for (const LogLevel level : {LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug})
    log(level, "of a test");
  std::_Exit(0);
}

void expect_logged(const char* value, const std::string& text) {
  EXPECT_EXIT(log_all(value), testing::ExitedWithCode(0), "^" + text + "$") << value;
}

TEST(Log, PrintsTheLevelsThatTheVariableAsksFor) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::string error = "lockstep error: of a test\n";
  const std::string warning = "lockstep warning: of a test\n";
  const std::string info = "lockstep info: of a test\n";
  expect_logged("off", "");
  expect_logged("error", error);
  expect_logged("", error + warning);
  expect_logged("warning", error + warning);
  expect_logged("loud", error + warning);
  expect_logged("info", error + warning + info);
  expect_logged("debug", error + warning + info + "lockstep debug: of a test\n");
}

TEST(Log, ALevelThatThereIsNotIsMisuseThatNamesTheLevels) {
  for (const char* known : {"off", "error", "warning", "info", "debug", ""}) {
    ::setenv("LOCKSTEP_LOG", known, 1);
    EXPECT_NO_THROW(require_known_log_level()) << known;
  }
  for (const char* unknown : {"loud", "Error", "info ", "2"}) {
    ::setenv("LOCKSTEP_LOG", unknown, 1);
    std::string text;
    EXPECT_EQ(fault_of([] { require_known_log_level(); }, &text), Fault::misuse) << unknown;
    EXPECT_NE(text.find(std::string("LOCKSTEP_LOG='") + unknown +
                        "' is no level: error, warning, info, debug or off"),
              text.npos)
        << text;
  }
  ::unsetenv("LOCKSTEP_LOG");
  EXPECT_NO_THROW(require_known_log_level());
}

}  // namespace
}  // namespace lockstep::log_test
