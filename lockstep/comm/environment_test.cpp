// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_environment([&](const char* key) -> const char* {
    const auto found = variables.find(key);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

TEST(Environment, UnderTorchrunItsVariablesCount) {
  const auto who = read({{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(who.launcher, "torchrun");
  EXPECT_EQ(who.rank, 3);
  EXPECT_EQ(who.world_size, 4);
  EXPECT_EQ(who.local_rank, 1);
  EXPECT_EQ(who.local_world_size, 2);
}

TEST(Environment, OpenMpiPmiAndSlurmAreUnderstood) {
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).launcher,
            "Open MPI");
  EXPECT_EQ(read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).launcher, "PMI");
  EXPECT_EQ(read({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}).launcher, "SLURM");
}

TEST(Environment, WithoutLocalVariablesAllRanksAreOnThisHost) {
  const auto who = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(who.local_rank, 1);
  EXPECT_EQ(who.local_world_size, 2);
}

TEST(Environment, JobsOfOneHostDifferByTheirPort) {
  const auto job = [](const char* port) {
    return read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}).job_id;
  };
  EXPECT_EQ(job("29500"), job("29500"));
  EXPECT_NE(job("29500"), job("29501"));
}

TEST(Environment, ProcessesOfTwoStepsOfOneSlurmJobAreTwoJobs) {
  const auto job = [](const char* step) {
    return read({{"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_JOB_ID", "7"},
                 {"SLURM_STEP_ID", step}})
        .job_id;
  };
  EXPECT_NE(job("0"), job("1"));
}

TEST(Environment, TheAttemptIsLockstepsElseTorchrunsElseTheFirst) {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(read(variables).attempt, 0);
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(read(variables).attempt, 2);
  variables["LOCKSTEP_ATTEMPT"] = "3";  // It also counts the starts that no failure has caused.
  EXPECT_EQ(read(variables).attempt, 3);
}

TEST(Environment, AnAttemptThatIsNoneIsRefusedByName) {
  for (const char* wrong : {"-1", "second"}) {
    const std::string text =
        refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_ATTEMPT", wrong}});
    EXPECT_NE(text.find("LOCKSTEP_ATTEMPT"), text.npos) << text;
  }
}

TEST(Environment, RanksOfSeveralAgentsAreToldTheirStore) {
  Variables variables{{"RANK", "2"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"LOCKSTEP_STORE", "node1:29400"}};
  EXPECT_EQ(read(variables).store, "node1:29400");
  variables.erase("LOCKSTEP_STORE");
  EXPECT_EQ(read(variables).store, "");
}

TEST(Environment, NothingSetIsRefusedWithWhatWasLookedFor) {
  const std::string text = refusal_of({});
  for (const char* key :
       {"WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "lockstep run"})
    EXPECT_NE(text.find(key), text.npos) << key;
}

TEST(Environment, AnEmptyVariableIsAsGoodAsNone) {
  EXPECT_NE(refusal_of({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("no launcher"), std::string::npos);
  EXPECT_EQ(read({{"RANK", ""}, {"WORLD_SIZE", ""}, {"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).launcher,
            "PMI");
}

TEST(Environment, StepsOfSlurmOnSeveralHostsAreSeenAsSuch) {
  const auto who = read({{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NUM_NODES", "2"}});
  EXPECT_EQ(who.local_world_size, 2);
  EXPECT_EQ(who.local_rank, 1);
}

TEST(Environment, ContradictionsAndNonsenseAreRefusedByName) {
  const auto names = [](const std::string& text, const char* key) {
    return text.find(key) != text.npos;
  };
  EXPECT_TRUE(names(refusal_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2"));
  EXPECT_TRUE(names(refusal_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK=-1"));
  EXPECT_TRUE(names(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=0"));
  EXPECT_TRUE(names(refusal_of({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), "'one'"));
  EXPECT_TRUE(names(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE"));
  EXPECT_TRUE(names(
      refusal_of(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}}),
      "LOCAL_WORLD_SIZE=4"));
}

}  // namespace
}  // namespace lockstep
