// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/temporary_folder.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/status.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_tune_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

Finished tune(std::vector<std::string> arguments, const std::vector<std::string>& variables = {}) {
  arguments.insert(arguments.begin(), {LOCKSTEP, "tune", "--global-batch"});
  return run_command(std::move(arguments), variables);
}

TEST(LockstepTune, ExplainsWrongCommandLines) {
  for (const auto& [arguments, reason] :
       {std::pair{std::vector<std::string>{"64"}, "PROGRAM is missing"},
        {{"64", "", "{batch}"}, "PROGRAM is empty"},
        {{"0", "/bin/true", "{batch}"}, "--global-batch"},
        {{"64", "/bin/true", "--batch", "32"}, "no argument of PROGRAM has {batch}"},
        {{"64", "--sav", "/bin/true", "{batch}"}, "did you mean --save?"},
        {{"64", "--seconds", "nan", "/bin/true", "{batch}"}, "nan is not a number"}}) {
    const Finished finished = tune(arguments);
    EXPECT_EQ(finished.code, 64) << finished.err;
    EXPECT_TRUE(has(finished.err, reason)) << finished.err;
  }
  EXPECT_EQ(tune({"64", "/no/such/program", "{batch}"}).code, 127);
  const Finished unwritable =
      tune({"64", "--json", "/no/such/folder/a.json", LOCKSTEP_PACED_STEPS, "{batch}", "1", "1"});
  EXPECT_EQ(unwritable.code, 71) << unwritable.err;
  EXPECT_TRUE(has(unwritable.err, "/no/such/folder/a.json")) << unwritable.err;
}

// A step of one rank takes 64 * 0.5 = 32 ms, one of two ranks 16 ms and 2 * the overhead.
TEST(LockstepTune, FindsTheFastestDivisionAndKeepsIt) {
  if (usable_cores() < 2) GTEST_SKIP() << "one core can be divided in one way only";
  const TemporaryFolder folder;
  const std::string config = "XDG_CONFIG_HOME=" + folder.path().string();
  const std::string json = folder.path() / "tune.json";
  // With three seconds, the median of the rates survives a stop of two.
  const Finished finished = tune({"64", "--seconds", "3", "--try", "600", "--save", "--json", json,
                                  LOCKSTEP_PACED_STEPS, "{batch}", "0.5", "0.1"},
                                 {config});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_TRUE(has(finished.out, "best: lockstep run -n 2 ")) << finished.out;
  EXPECT_TRUE(has(finished.out, "saved in ")) << finished.out;
  const auto all = nlohmann::json::parse(std::ifstream(json));
  const auto& divisions = all.at("divisions");
  ASSERT_GE(divisions.size(), 4U);
  EXPECT_EQ(divisions[0].at("ranks"), 1);
  EXPECT_EQ(divisions[1].at("options"), nlohmann::json({"600"}));
  EXPECT_EQ(divisions[2].at("ranks"), 2);
  EXPECT_EQ(divisions[2].at("batch"), 32);
  const double ideal = 64 / 0.0321;
  EXPECT_LT(divisions[0].at("samples_per_second"), 1.02 * ideal);
  EXPECT_GT(divisions[0].at("samples_per_second"), 0.5 * ideal) << "on a busy host";

  const Finished tuned = run_command(
      {LOCKSTEP_RUN, "-n", "tuned", "--dry-run", LOCKSTEP_PACED_STEPS, "{batch}", "1", "0", "10"},
      {config});
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "32 1 0 10")) << tuned.out;
  const Finished unknown = run_command({LOCKSTEP_RUN, "-n", "tuned", "/bin/true"}, {config});
  EXPECT_EQ(unknown.code, 64);
  EXPECT_TRUE(has(unknown.err, "nothing is saved for /bin/true on this host")) << unknown.err;
}

TEST(LockstepTune, ShowsWhyNoDivisionCouldBeMeasured) {
  const Finished failed = tune({"64", LOCKSTEP_PACED_STEPS, "0", "1", "0", "{batch}"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_TRUE(has(failed.out, "it ended with exit code")) << failed.out;
  EXPECT_TRUE(has(failed.out, "there is nothing to train on")) << failed.out;
  EXPECT_TRUE(has(failed.err, "no division could be measured")) << failed.err;
  const Finished few = tune({"64", LOCKSTEP_PACED_STEPS, "{batch}", "4", "0", "5"});
  EXPECT_TRUE(has(few.out, "steps, which are too few to measure")) << few.out;
  const Finished none = tune({"64", "/bin/true", "{batch}"});
  EXPECT_TRUE(has(none.out, "before a step was counted")) << none.out;
}

TEST(LockstepTune, ASignalEndsTheProgram) {
  RunningCommand command(
      {LOCKSTEP, "tune", "--global-batch", "64", LOCKSTEP_PACED_STEPS, "{batch}", "1", "1"});
  const std::string job = "tune-" + std::to_string(command.pid()) + "-";
  const auto runs = [&] {
    for (const JobStatus& each : running_jobs())
      if (each.job_id.starts_with(job)) return true;
    return false;
  };
  ASSERT_TRUE(soon(runs));
  ::kill(command.pid(), SIGTERM);
  EXPECT_EQ(command.wait(), 128 + SIGTERM);
  EXPECT_FALSE(runs()) << "its program still runs";
}

}  // namespace
}  // namespace lockstep::test::lockstep_tune_test
