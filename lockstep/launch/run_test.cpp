// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/launch/interpreter.h"
#include "tests/ranks.h"

namespace lockstep::launch::run_test {
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

TEST(LogOptions, RejectInvalidStreamsAndQuoteThem) {
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

class Program : public testing::Test {
 protected:
  Program() {
    std::filesystem::create_directories(scratch_.path() / "first");
    std::filesystem::create_directories(scratch_.path() / "second");
    ::setenv("PATH", (in("first") + ":" + in("second")).c_str(), 1);
  }
  ~Program() override { ::setenv("PATH", path_.c_str(), 1); }

  std::string in(const std::string& name) const { return scratch_.path() / name; }

  std::string make(const std::string& name, mode_t mode) const {
    std::ofstream(in(name)) << "#!/bin/sh\n";
    ::chmod(in(name).c_str(), mode);
    return in(name);
  }

 private:
  test::ScratchDirectory scratch_;
  std::string path_ = std::getenv("PATH");
};

TEST_F(Program, IsFoundInTheFirstFolderOfPathThatHasIt) {
  const std::string second = make("second/tool", 0755);
  EXPECT_EQ(find_program("tool").path, second);
  const std::string first = make("first/tool", 0755);
  EXPECT_EQ(find_program("tool").path, first);
}

TEST_F(Program, WithASlashInItsNameIsNotSearchedFor) {
  make("first/tool", 0755);
  EXPECT_EQ(find_program(in("first/tool")).path, in("first/tool"));
  EXPECT_EQ(find_program("./tool").exit_code, 127);
}

TEST_F(Program, ThatIsMissingIs127) {
  const ProgramSearch search = find_program("tool");
  EXPECT_EQ(search.path, "");
  EXPECT_EQ(search.exit_code, 127);
  EXPECT_EQ(search.problem, "tool: not found in PATH");
  EXPECT_EQ(find_program("").exit_code, 127);
  EXPECT_EQ(find_program(make("first/tool", 0755) + "/below").exit_code, 127);
}

TEST_F(Program, ThatIsNotExecutableIs126) {
  make("first/tool", 0644);
  EXPECT_EQ(find_program("tool").exit_code, 126);
  EXPECT_TRUE(
      find_program(make("first/train.py", 0644)).problem.ends_with("put `python3` before it"));
  const std::string second = make("second/tool", 0755);
  EXPECT_EQ(find_program("tool").path, second) << "the search goes on";
}

TEST_F(Program, InTheCurrentFolderIsSuggestedWithItsPath) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(in("."));
  make("runs.py", 0755);
  make("reads.py", 0644);
  make("tool", 0644);
  for (const auto& [name, hint] :
       {std::pair{"runs.py", "did you mean ./runs.py?"},
        {"reads.py", "did you mean python3 reads.py?"},
        {"tool", "./tool is there, but is not executable: chmod +x it"}}) {
    const ProgramSearch search = find_program(name);
    EXPECT_EQ(search.problem, std::string(name) + ": not found in PATH; " + hint);
    EXPECT_EQ(search.exit_code, 127);
  }
  std::filesystem::current_path(before);
}

TEST_F(Program, ThatIsAFolderIsAWrongCommandLine) {
  for (const std::string& name : {std::string("."), std::string(".."), in("first")}) {
    const ProgramSearch search = find_program(name);
    EXPECT_EQ(search.path, "");
    EXPECT_EQ(search.exit_code, exit_usage);
    EXPECT_EQ(search.problem, name + " is a folder, not a program: name a program in it");
  }
}

TEST_F(Program, NamesItsMissingInterpreter) {
  struct Case {
    const char* line;
    const char* interpreter;  // Empty if it exists.
    const char* hint;
  };
  for (const Case& each : {Case{"#!/bin/sh", "", ""},
                           {"#! /bin/sh -e", "", ""},
                           {"#!/usr/bin/env no-such-program", "", ""},
                           {"no script", "", ""},
                           {"#!", "", ""},
                           {"#!/opt/no/python3", "/opt/no/python3", ""},
                           {"#!\t/opt/no/python3 -u", "/opt/no/python3", ""},
                           {"#!/bin/sh\r", "/bin/sh ",
                            "; its first line ends with a carriage "
                            "return, as on Windows"}}) {
    const std::string script = make("first/script", 0755);
    std::ofstream(script) << each.line << "\necho\n";
    const ProgramSearch search = find_program("script");
    if (*each.interpreter == '\0') {
      EXPECT_EQ(search.path, script) << each.line;
    } else {
      EXPECT_EQ(search.problem,
                script + ": its interpreter " + each.interpreter + " does not exist" + each.hint);
      EXPECT_EQ(search.exit_code, 127);
      EXPECT_EQ(search.path, "");
    }
  }
}

TEST_F(Program, NamesItsMissingLoader) {
  std::ifstream in_file("/proc/self/exe", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in_file), {}};
  const std::string loader = interpreter_of("/proc/self/exe");
  ASSERT_TRUE(loader.starts_with("/lib")) << loader;
  const std::string other = "/Lib" + loader.substr(4);
  bytes.replace(bytes.find(loader), loader.size(), other);
  const std::string program = make("first/program", 0755);
  std::ofstream(program, std::ios::binary) << bytes;
  EXPECT_EQ(find_program(program).problem,
            program + ": its interpreter " + other + " does not exist");
}

}  // namespace
}  // namespace lockstep::launch::run_test
