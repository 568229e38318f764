// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/number_formats.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_doctor_test {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(LockstepDoctor, ExaminesThisHost) {
  const Finished doctor = run_command({LOCKSTEP, "doctor", "-n", "1"});
  EXPECT_EQ(doctor.code, 0) << doctor.out << doctor.err;
  EXPECT_EQ(doctor.err, "");
  EXPECT_TRUE(has(doctor.out, "\n1 rank can run on this host\n")) << doctor.out;
  for (const char* label :
       {"cores  ", "numbers   bfloat16 ", "memory  ", "sharing   works", "LibTorch  ",
        "engines   mpi", "limits  ", "network  ", "launcher  ", "token  "})
    EXPECT_TRUE(has(doctor.out, std::string("\n") + label)) << label << "\n" << doctor.out;
}

TEST(LockstepDoctor, ReportsTheSameInJson) {
  const Finished doctor = run_command({LOCKSTEP_DOCTOR, "--json", "-n", "1"});
  EXPECT_EQ(doctor.code, 0) << doctor.err;
  const json found = json::parse(doctor.out);
  char name[65] = {};
  ::gethostname(name, sizeof name - 1);
  EXPECT_EQ(found["host"], name);
  EXPECT_EQ(found["lockstep"], LOCKSTEP_VERSION);
  EXPECT_EQ(found["can_run"], true);
  EXPECT_GE(found["processors"]["usable_cores"], 1);
  EXPECT_EQ(found["processors"]["bf16"], number_formats().bf16.found);
  EXPECT_EQ(found["processors"]["fp16"], number_formats().fp16.found);
  EXPECT_GT(found["memory"]["total"], found["memory"]["available"]);
  EXPECT_EQ(found["engines"].size(), 4u);
  EXPECT_FALSE(found["network"]["interfaces"].empty());
}

TEST(LockstepDoctor, EndsWith1AndACureWhereTheJobCannotRun) {
  const Finished doctor =
      run_command({LOCKSTEP_DOCTOR, "--nnodes", "2", "--interface", "lo", "-n", "1"});
  EXPECT_EQ(doctor.code, 1) << doctor.err;
  EXPECT_TRUE(has(doctor.out, "problem: other hosts cannot reach this one")) << doctor.out;
  EXPECT_TRUE(has(doctor.out, "problem: there is no token")) << doctor.out;
}

TEST(LockstepDoctor, TakesTheJobFromTheLauncher) {
  const Finished doctor =
      run_command({LOCKSTEP_DOCTOR, "--json"},
                  {"RANK=5", "WORLD_SIZE=6", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"});
  const json found = json::parse(doctor.out);
  EXPECT_EQ(found["launcher"]["rank"], 5);
  EXPECT_EQ(found["job"]["ranks"], 2);
  EXPECT_EQ(found["job"]["hosts"], 3);
}

TEST(LockstepDoctor, NamesVariablesThatContradictEachOther) {
  const Finished doctor = run_command({LOCKSTEP_DOCTOR}, {"RANK=7", "WORLD_SIZE=2"});
  EXPECT_EQ(doctor.code, 1) << doctor.err;
  EXPECT_TRUE(has(doctor.out, "problem: the launcher's variables")) << doctor.out;
  EXPECT_TRUE(has(doctor.out, "RANK=7")) << doctor.out;
}

TEST(LockstepDoctor, NeverShowsTheToken) {
  const std::string secret(32, 'x');
  const Finished doctor =
      run_command({LOCKSTEP_DOCTOR, "--json"}, {"LOCKSTEP_JOB_TOKEN=" + secret});
  EXPECT_EQ(json::parse(doctor.out)["token"]["source"], "LOCKSTEP_JOB_TOKEN");
  EXPECT_FALSE(has(doctor.out + doctor.err, secret));
}

TEST(LockstepDoctor, RefusesATokenThatOthersMayRead) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "token";
  std::ofstream(file) << std::string(43, 'x') << "\n";
  std::filesystem::permissions(
      file, std::filesystem::perms::owner_read | std::filesystem::perms::others_read);
  const Finished doctor =
      run_command({LOCKSTEP_DOCTOR}, {"LOCKSTEP_JOB_TOKEN_FILE=" + file.string()});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_TRUE(has(doctor.out, "others may read or write it")) << doctor.out;
}

TEST(LockstepDoctor, RefusesACommandLineThatIsWrong) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--fly"}, {"-n", "0"}, {"-n", "many"}, {"patient"}}) {
    std::vector<std::string> command{LOCKSTEP_DOCTOR};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Finished doctor = run_command(command);
    EXPECT_EQ(doctor.code, 64) << arguments[0];
    EXPECT_TRUE(has(doctor.err, "see lockstep doctor --help")) << doctor.err;
    if (arguments[0] == "-n") {
      EXPECT_TRUE(has(doctor.err, " -n")) << doctor.err;
      EXPECT_FALSE(has(doctor.err, "--nproc-per-node")) << doctor.err;
    }
  }
  const Finished spelled_out = run_command({LOCKSTEP_DOCTOR, "--nproc-per-node", "0"});
  EXPECT_TRUE(has(spelled_out.err, "--nproc-per-node")) << spelled_out.err;
}

TEST(LockstepDoctor, EndsWith74WhereStdoutTakesNothing) {
  for (const char* words : {LOCKSTEP_DOCTOR " -n 1", LOCKSTEP_DOCTOR " --help"}) {
    const Finished full = run_command({"/bin/sh", "-c", std::string(words) + " > /dev/full"});
    EXPECT_EQ(full.code, 74) << words;
    EXPECT_NE(full.err.find("lockstep doctor: stdout: No space left"), full.err.npos) << full.err;
  }
}

TEST(LockstepDoctor, HelpsWithExamples) {
  const Finished help = run_command({LOCKSTEP_DOCTOR, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help.out, "lockstep doctor -n 8 --nnodes 4")) << help.out;
  EXPECT_TRUE(has(help.out, "Exit code: 0")) << help.out;
}

}  // namespace
}  // namespace lockstep::test::lockstep_doctor_test
