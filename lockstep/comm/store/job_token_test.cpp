// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/store/job_token.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using test::fault_of;

class StoreToken : public testing::Test {
 protected:
  ~StoreToken() override {
    ::unsetenv("LOCKSTEP_JOB_TOKEN");
    ::unsetenv("LOCKSTEP_JOB_TOKEN_FILE");
  }
  std::string write(const std::string& text, mode_t mode) {
    const std::string path = scratch_.path() / "token";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    ::setenv("LOCKSTEP_JOB_TOKEN_FILE", path.c_str(), 1);
    return path;
  }

  test::ScratchDirectory scratch_;
  const std::string text_ = make_job_token().text();
};

TEST_F(StoreToken, TwoMadeTokensDiffer) {
  EXPECT_EQ(text_.size(), 44u);
  EXPECT_NE(text_, make_job_token().text());
}

TEST_F(StoreToken, ShortOrStrangeTextIsRefusedAndNotRepeated) {
  for (const std::string bad : {"", "short", "twenty1charactersisno", "has a space in its midst!",
                                "====================================="}) {
    std::string message;
    EXPECT_EQ(fault_of([&] { JobToken{bad}; }, &message), Fault::misuse);
    if (!bad.empty()) {
      EXPECT_EQ(message.find(bad), message.npos);
    }
  }
  EXPECT_EQ(JobToken("twenty2charactersis-ok").text().size(), 22u);
}

TEST_F(StoreToken, TheVariableIsReadOnceAndWiped) {
  EXPECT_FALSE(read_job_token());
  ::setenv("LOCKSTEP_JOB_TOKEN", text_.c_str(), 1);
  const char* there = ::getenv("LOCKSTEP_JOB_TOKEN");
  EXPECT_EQ(read_job_token()->text(), text_);
  EXPECT_EQ(there[0], '\0');
  EXPECT_FALSE(read_job_token());
}

TEST_F(StoreToken, AFileOfOursThatNobodyElseReadsIsRead) {
  write(text_ + "\n", 0600);
  EXPECT_EQ(read_job_token()->text(), text_);
  EXPECT_EQ(read_job_token()->text(), text_);
}

TEST_F(StoreToken, AFileThatOthersMayReadALinkAndNoFileAreRefused) {
  const std::string path = write(text_, 0640);
  std::string message;
  EXPECT_EQ(fault_of([] { read_job_token(); }, &message), Fault::misuse);
  EXPECT_NE(message.find("chmod 600"), message.npos) << message;
  ::chmod(path.c_str(), 0600);
  const std::string link = scratch_.path() / "link";
  std::filesystem::create_symlink(path, link);
  ::setenv("LOCKSTEP_JOB_TOKEN_FILE", link.c_str(), 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }, &message), Fault::misuse);
  EXPECT_NE(message.find("symbolic link"), message.npos) << message;
  ::setenv("LOCKSTEP_JOB_TOKEN_FILE", "/nonexistent", 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }), Fault::misuse);
}

TEST_F(StoreToken, BothVariablesAtOnceAreMisuse) {
  write(text_, 0600);
  ::setenv("LOCKSTEP_JOB_TOKEN", text_.c_str(), 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep
