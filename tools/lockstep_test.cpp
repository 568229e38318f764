// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_test {
namespace {

TEST(Lockstep, ListsTheSubcommandsBesideItWithAnExampleOfEach) {
  for (const auto& arguments :
       {std::vector<std::string>{LOCKSTEP}, {LOCKSTEP, "--help"}, {LOCKSTEP, "help"}}) {
    const Finished help = run_command(arguments);
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.out.find("run "), help.out.npos);
    EXPECT_NE(help.out.find("lockstep run -n 4 ./my_program"), help.out.npos);
  }
}

TEST(Lockstep, PrintsItsVersion) {
  for (const char* word : {"--version", "version"}) {
    const Finished version = run_command({LOCKSTEP, word});
    EXPECT_EQ(version.code, 0);
    EXPECT_EQ(version.out, "lockstep " LOCKSTEP_VERSION "\n");
  }
  EXPECT_NE(run_command({LOCKSTEP}).out.find("  version "), std::string::npos);
}

TEST(Lockstep, SuggestsTheSubcommandThatAMisspelledOneMeans) {
  struct Case {
    const char* name;
    const char* meant;  // Null for none.
  };
  for (const Case& each : {Case{"rnu", "run"},
                           {"ru", "run"},
                           {"runn", "run"},
                           {"statsu", "status"},
                           {"stat", "status"},
                           {"reprot", "report"},
                           {"timline", "timeline"},
                           {"verison", "version"},
                           {"--top", nullptr},
                           {"fly", nullptr},
                           {"x", nullptr},
                           {"", nullptr}}) {
    const Finished refused = run_command({LOCKSTEP, each.name});
    EXPECT_EQ(refused.code, 64) << each.name;
    const bool suggests = refused.err.find("did you mean") != refused.err.npos;
    EXPECT_EQ(suggests, each.meant != nullptr) << refused.err;
    if (each.meant == nullptr) continue;
    const std::string question = std::string("did you mean `lockstep ") + each.meant + "`?";
    EXPECT_TRUE(refused.err.ends_with(question + "\n")) << refused.err;
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  }
}

TEST(Lockstep, EndsWith74WhereStdoutTakesNothing) {
  for (const char* words :
       {LOCKSTEP " --help", LOCKSTEP " --version", LOCKSTEP_RUN " --help",
        LOCKSTEP_RUN " --dry-run /bin/true", LOCKSTEP_STATUS, LOCKSTEP " status",
        LOCKSTEP_PLAN " --help", LOCKSTEP_PLAN " -n 2 --microbatches 4",
        LOCKSTEP_PLAN " -n 2 --microbatches 4 --schedule gpipe", LOCKSTEP_STATUS " --help",
        LOCKSTEP_STATUS " --json", LOCKSTEP_STATUS " --watch 100"}) {
    const Finished full = run_command({"/bin/sh", "-c", std::string(words) + " > /dev/full"});
    EXPECT_EQ(full.code, 74) << words;
    EXPECT_NE(full.err.find("stdout: No space left on device\n"), full.err.npos) << full.err;
  }
}

TEST(Lockstep, RefusesASubcommandThatIsNotThere) {
  for (const char* name : {"fly", "--fly", "../bin/lockstep-run", ""}) {
    const Finished refused = run_command({LOCKSTEP, name});
    EXPECT_EQ(refused.code, 64) << name;
    EXPECT_NE(refused.err.find(std::string("there is no subcommand '") + name + "'"),
              refused.err.npos);
    EXPECT_NE(refused.err.find("run, shard, status"), refused.err.npos) << refused.err;
  }
}

TEST(Lockstep, LooksForSubcommandsBesideItselfWhereverItIs) {
  const ScratchDirectory scratch;
  const std::string copy = scratch.path() / "lockstep";
  std::filesystem::copy_file(LOCKSTEP, copy);
  const std::string sub = scratch.path() / "lockstep-hello";
  std::ofstream(sub) << "#!/bin/sh\necho \"hello $*\"; exit 3\n";
  std::filesystem::permissions(sub, std::filesystem::perms::owner_all);

  const Finished hello = run_command({copy, "hello", "-n", "a b"});
  EXPECT_EQ(hello.code, 3);
  EXPECT_EQ(hello.out, "hello -n a b\n");
  EXPECT_NE(run_command({copy}).out.find("  hello"), std::string::npos);
}

TEST(Lockstep, PassesArgumentsOnToTheSubcommand) {
  const Finished run = run_command({LOCKSTEP, "run", "-n", "2", "/bin/sh", "-c", "exit 9"});
  EXPECT_EQ(run.code, 9);
}

TEST(Lockstep, IsShownByPsAsTheSubcommand) {
  const Finished run = run_command(
      {LOCKSTEP, "run", "-n", "1", "/bin/sh", "-c", "tr '\\0' ' ' < /proc/$PPID/cmdline"});
  EXPECT_NE(run.out.find("lockstep-run -n 1 /bin/sh"), run.out.npos) << run.out << run.err;
}

}  // namespace
}  // namespace lockstep::test::lockstep_test
