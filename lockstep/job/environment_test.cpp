// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/variables.h"

namespace lockstep::job::environment_test {
namespace {

using Settings = std::map<std::string, std::string>;

LaunchEnvironment read(const Settings& variables) {
  return read_environment([&](const char* key) -> const char* {
    const auto found = variables.find(key);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const Settings& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

struct Row {
  const char* what;
  Settings variables;
  const char* launcher;
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
  bool is_mpi;
  const char* master;  // Its prefix; empty for none.
};

// A service link of Kubernetes.
const char* const link = "tcp://10.0.0.1:29400";

const std::vector<Row> rows{
    {"torchrun inside of a SLURM task",
     {{"RANK", "3"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"TORCHELASTIC_RUN_ID", "none"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"}},
     "torchrun",
     3,
     4,
     1,
     2,
     false,
     ""},
    {"a Kubernetes operator",
     {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-0"}, {"MASTER_PORT", "23456"}},
     "environment",
     2,
     4,
     0,
     1,
     false,
     "job-0:23456"},
    {"a Kubernetes service named master, and no master",
     {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", link}},
     "environment",
     1,
     2,
     1,
     2,
     false,
     ""},
    {"Kubernetes services named master and lockstep-store beside mpirun",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "job@1"},
      {"MASTER_PORT", link},
      {"LOCKSTEP_STORE", link}},
     "Open MPI",
     1,
     2,
     1,
     2,
     true,
     "127.0.0.1:"},
    {"Open MPI without ranks per host",
     {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
     "Open MPI",
     1,
     2,
     0,
     1,
     true,
     ""},
    {"MVAPICH2 on two hosts",
     {{"MV2_COMM_WORLD_RANK", "3"},
      {"MV2_COMM_WORLD_SIZE", "4"},
      {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
      {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMI_RANK", "3"},
      {"PMI_SIZE", "4"}},
     "MVAPICH2",
     3,
     4,
     1,
     2,
     true,
     ""},
    {"IBM's jsrun",
     {{"JSM_NAMESPACE_RANK", "5"},
      {"JSM_NAMESPACE_SIZE", "8"},
      {"JSM_NAMESPACE_LOCAL_RANK", "1"},
      {"JSM_NAMESPACE_LOCAL_SIZE", "4"},
      {"PMIX_RANK", "5"}},
     "JSM",
     5,
     8,
     1,
     4,
     true,
     ""},
    {"MPICH or Intel MPI on one host",
     {{"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "2"},
      {"PMI_JOBID", "7"}},
     "PMI",
     1,
     2,
     1,
     2,
     true,
     "127.0.0.1:"},
    {"PMI without ranks per host, which may be several hosts",
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "7"}},
     "PMI",
     1,
     2,
     0,
     1,
     true,
     ""},
    {"PMI of a single rank", {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, "PMI", 0, 1, 0, 1, true, ""},
    {"PMI whose job Flux has started on two hosts",
     {{"PMI_RANK", "2"},
      {"PMI_SIZE", "4"},
      {"FLUX_TASK_RANK", "2"},
      {"FLUX_JOB_SIZE", "4"},
      {"FLUX_TASK_LOCAL_ID", "1"},
      {"FLUX_JOB_NNODES", "2"}},
     "PMI",
     2,
     4,
     1,
     2,
     true,
     ""},
    {"mpiexec inside of a task of Flux",
     {{"PMI_RANK", "2"},
      {"PMI_SIZE", "4"},
      {"FLUX_TASK_RANK", "0"},
      {"FLUX_JOB_SIZE", "1"},
      {"FLUX_TASK_LOCAL_ID", "0"},
      {"FLUX_JOB_NNODES", "1"}},
     "PMI",
     2,
     4,
     0,
     1,
     true,
     ""},
    {"Cray's PMI",
     {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}},
     "PMI",
     5,
     8,
     1,
     4,
     true,
     ""},
    {"PALS, which sets PMI's variables, too",
     {{"PMI_RANK", "5"},
      {"PMI_SIZE", "8"},
      {"PALS_RANKID", "5"},
      {"PALS_LOCAL_RANKID", "1"},
      {"PALS_LOCAL_SIZE", "4"}},
     "PMI",
     5,
     8,
     1,
     4,
     true,
     ""},
    {"PALS without PMI",
     {{"PALS_RANKID", "5"},
      {"WORLD_SIZE", "8"},
      {"PALS_LOCAL_RANKID", "1"},
      {"PALS_LOCAL_SIZE", "4"}},
     "PALS",
     5,
     8,
     1,
     4,
     true,
     ""},
    {"Flux on one host",
     {{"FLUX_TASK_RANK", "1"},
      {"FLUX_JOB_SIZE", "2"},
      {"FLUX_TASK_LOCAL_ID", "1"},
      {"FLUX_JOB_NNODES", "1"},
      {"FLUX_JOB_ID", "f1"}},
     "Flux",
     1,
     2,
     1,
     2,
     false,
     "127.0.0.1:"},
    {"Flux on two hosts with one and four tasks",
     {{"FLUX_TASK_RANK", "3"},
      {"FLUX_JOB_SIZE", "5"},
      {"FLUX_TASK_LOCAL_ID", "3"},
      {"FLUX_JOB_NNODES", "2"}},
     "Flux",
     3,
     5,
     3,
     4,
     false,
     ""},
    {"srun on two hosts",
     {{"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_JOB_ID", "7"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_STEP_NODELIST", "node[03,07]"}},
     "SLURM",
     3,
     4,
     1,
     2,
     false,
     "node03:"},
    {"srun --mpi=pmix",
     {{"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_STEP_ID", "0"},
      {"PMIX_RANK", "3"}},
     "SLURM",
     3,
     4,
     1,
     2,
     false,
     ""},
    {"a script of sbatch with one task",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "7"}},
     "SLURM",
     0,
     1,
     0,
     1,
     false,
     "127.0.0.1:"},
    {"PMIx with a number of ranks by the user",
     {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "prterun-1@1"}},
     "PMIx",
     1,
     2,
     0,
     1,
     true,
     ""},
    {"independent trainings as tasks of one srun",
     {{"LOCKSTEP_LAUNCHER", "none"},
      {"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_STEP_ID", "0"},
      {"MASTER_ADDR", "node1"},
      {"MASTER_PORT", "29400"}},
     "none",
     0,
     1,
     0,
     1,
     false,
     ""},
    {"jobs of two by hand as tasks of one srun",
     {{"LOCKSTEP_LAUNCHER", "env"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_STEP_ID", "0"}},
     "environment",
     1,
     2,
     1,
     2,
     false,
     ""},
    {"SLURM chosen before PMI",
     {{"LOCKSTEP_LAUNCHER", "slurm"},
      {"PMI_RANK", "0"},
      {"PMI_SIZE", "1"},
      {"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_STEP_NUM_NODES", "1"},
      {"SLURM_JOB_ID", "7"}},
     "SLURM",
     1,
     2,
     1,
     2,
     false,
     "127.0.0.1:"},
    {"any MPI chosen before RANK",
     {{"LOCKSTEP_LAUNCHER", "mpi"},
      {"RANK", "0"},
      {"WORLD_SIZE", "1"},
      {"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"PMI_LOCAL_RANK", "1"},
      {"PMI_LOCAL_SIZE", "2"}},
     "PMI",
     1,
     2,
     1,
     2,
     true,
     ""},
};

TEST(Environment, EachLauncherGivesItsPlace) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const LaunchEnvironment who = read(row.variables);
    EXPECT_EQ(who.launcher, row.launcher);
    EXPECT_EQ(who.rank, row.rank);
    EXPECT_EQ(who.world_size, row.world_size);
    EXPECT_EQ(who.local_rank, row.local_rank);
    EXPECT_EQ(who.local_world_size, row.local_world_size);
    EXPECT_EQ(is_mpi_launcher(who.launcher), row.is_mpi);
    EXPECT_EQ(who.store, "");
    EXPECT_EQ(who.master.empty(), *row.master == '\0') << who.master;
    EXPECT_TRUE(who.master.starts_with(row.master)) << who.master;
  }
}

struct Refusal {
  const char* what;
  Settings variables;
  std::vector<std::string> words;
};

const Settings of_sbatch{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}};

Settings joined(Settings one, const Settings& other) {
  for (const auto& [key, value] : other) one[key] = value;
  return one;
}

const std::vector<Refusal> refusals{
    {"nothing",
     {},
     {"none of RANK, OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PMI_RANK",
      "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID", "PMIX_RANK", "lockstep run"}},
    {"a program in a script of sbatch",
     of_sbatch,
     {"SLURM's job 7 has 4 tasks", "script of sbatch", "srun PROGRAM"}},
    {"the same, with a number for the script's step",
     joined(of_sbatch, {{"SLURM_STEP_ID", "4294967291"}}),
     {"srun PROGRAM"}},
    {"a shell of salloc", {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}}, {"srun PROGRAM"}},
    {"PMIx without a number of ranks", {{"PMIX_RANK", "1"}}, {"PMIX_RANK (1)", "pass WORLD_SIZE"}},
    {"PALS without a number of ranks",
     {{"PALS_RANKID", "1"}, {"PALS_LOCAL_SIZE", "4"}},
     {"PALS_RANKID (1)", "pass WORLD_SIZE"}},
    {"a launcher that is not there",
     joined(of_sbatch, {{"LOCKSTEP_LAUNCHER", "openmpi"}}),
     {"LOCKSTEP_LAUNCHER=openmpi, but", "OMPI_COMM_WORLD_RANK (unset)"}},
    {"an unknown launcher",
     {{"LOCKSTEP_LAUNCHER", "slrum"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
     {"LOCKSTEP_LAUNCHER='slrum'",
      "none, mpi, env, openmpi, mvapich2, jsm, pmi, pals, flux, slurm, pmix"}},
};

TEST(Environment, EachLackIsRefusedWithAnAdvice) {
  for (const Refusal& row : refusals) {
    const std::string text = refusal_of(row.variables);
    for (const std::string& word : row.words)
      EXPECT_NE(text.find(word), text.npos) << row.what << ": '" << word << "' in: " << text;
  }
}

TEST(Environment, FluxConnectsTheRanksOfMpiIfItHasPmix) {
  EXPECT_FALSE(is_mpi_launcher("Flux"));
  ::setenv("PMIX_RANK", "0", 1);
  EXPECT_TRUE(is_mpi_launcher("Flux"));
  EXPECT_FALSE(is_mpi_launcher("SLURM")) << "its own variables say where rank 0 is";
  ::unsetenv("PMIX_RANK");
}

TEST(Environment, ALauncherIsKnownByItsRank) {
  const auto is_launched_with = [](const Settings& variables) {
    for (const auto& [key, value] : variables) ::setenv(key.c_str(), value.c_str(), 1);
    const bool is = is_launched();
    for (const auto& [key, value] : variables) ::unsetenv(key.c_str());
    return is;
  };
  EXPECT_FALSE(is_launched_with({}));
  EXPECT_FALSE(is_launched_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_FALSE(is_launched_with(of_sbatch));
  EXPECT_TRUE(is_launched_with(joined(of_sbatch, {{"SLURM_STEP_ID", "0"}})));
  EXPECT_TRUE(is_launched_with({{"FLUX_TASK_RANK", "0"}}));
  EXPECT_TRUE(is_launched_with({{"LOCKSTEP_LAUNCHER", "none"}}));
}

TEST(Environment, IndependentTrainingsOfOneHostAreDifferentJobs) {
  const std::string id = read({{"LOCKSTEP_LAUNCHER", "none"}}).job_id;
  EXPECT_NE(id.find(std::to_string(::getpid())), id.npos) << id;
}

// The number of a descriptor may differ between hosts.
TEST(Environment, TheJobsNameTakesOnlyWhatAllRanksShareFromAnotherLauncher) {
  const auto name_with = [](const char* descriptor) {
    return read({{"RANK", "1"},
                 {"WORLD_SIZE", "4"},
                 {"MASTER_ADDR", "node1"},
                 {"MASTER_PORT", "29400"},
                 {"PMI_RANK", "1"},
                 {"PMI_SIZE", "4"},
                 {"MPI_LOCALRANKID", "1"},
                 {"MPI_LOCALNRANKS", "2"},
                 {"HYDI_CONTROL_FD", descriptor}});
  };
  EXPECT_EQ(name_with("7").local_world_size, 2) << "the rest is PMI's";
  EXPECT_EQ(name_with("7").job_id, name_with("8").job_id);
}

TEST(Environment, JobsOfFluxDifferAlsoByPmisVariables) {
  Settings variables = {{"PMI_RANK", "0"},      {"PMI_SIZE", "2"},        {"FLUX_TASK_RANK", "0"},
                        {"FLUX_JOB_SIZE", "2"}, {"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_ID", "f1"}};
  const LaunchEnvironment first = read(variables);
  variables["FLUX_JOB_ID"] = "f2";
  EXPECT_NE(read(variables).job_id, first.job_id);
  EXPECT_NE(read(variables).master, first.master);
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
  Settings variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(read(variables).attempt, 0);
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(read(variables).attempt, 2);
  variables["LOCKSTEP_ATTEMPT"] = "3";  // It also counts restarts without a failure.
  EXPECT_EQ(read(variables).attempt, 3);
}

TEST(Environment, AnAttemptThatIsNoneIsRefusedByName) {
  for (const char* wrong : {"-1", "second"}) {
    const std::string text =
        refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_ATTEMPT", wrong}});
    EXPECT_NE(text.find("LOCKSTEP_ATTEMPT"), text.npos) << text;
  }
}

TEST(Environment, RanksOfSeveralAgentsReceiveTheirStore) {
  Settings variables{{"RANK", "2"},
                     {"WORLD_SIZE", "4"},
                     {"LOCAL_RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"LOCKSTEP_STORE", "node1:29400"}};
  EXPECT_EQ(read(variables).store, "node1:29400");
  variables.erase("LOCKSTEP_STORE");
  EXPECT_EQ(read(variables).store, "");
}

TEST(Environment, AnEmptyVariableIsAsGoodAsNone) {
  EXPECT_NE(refusal_of({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("no launcher"), std::string::npos);
  EXPECT_EQ(read({{"RANK", ""}, {"WORLD_SIZE", ""}, {"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).launcher,
            "PMI");
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

TEST(Environment, TheFirstFamilyOfLaunchersThatSpeaksCounts) {
  const Settings slurm{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "0"}};
  Settings pmi = slurm;
  pmi.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});
  Settings open_mpi = pmi;
  open_mpi.insert({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(read(slurm).rank, 5);
  EXPECT_EQ(read(pmi).rank, 3);
  EXPECT_EQ(read(open_mpi).rank, 1);
}

TEST(Environment, VariablesSetByHandMustAgreeWithTheLauncherAroundThem) {
  struct Case {
    const char* rank;
    const char* size;
  };
  for (const Case& outer : {Case{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                            {"PMI_RANK", "PMI_SIZE"},
                            {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    Settings variables{{"RANK", "1"},
                       {"WORLD_SIZE", "4"},
                       {"SLURM_STEP_ID", "0"},
                       {outer.rank, "1"},
                       {outer.size, "4"}};
    EXPECT_EQ(read(variables).launcher, "environment");
    variables[outer.size] = "2";
    const std::string text = refusal_of(variables);
    for (const std::string& part : {std::string("RANK=1"), std::string("WORLD_SIZE=4"),
                                    outer.rank + std::string("=1"), outer.size + std::string("=2")})
      EXPECT_NE(text.find(part), text.npos) << text;
    variables[outer.size] = "4";
    variables[outer.rank] = "3";
    EXPECT_NE(refusal_of(variables).find(outer.rank + std::string("=3")), text.npos);
  }
}

TEST(Environment, AnAgentMayRunInsideOfAnotherLaunchersJob) {
  for (const char* agent : {"TORCHELASTIC_RUN_ID", "LOCKSTEP_JOB_ID"}) {
    const auto who = read({{"RANK", "3"},
                           {"WORLD_SIZE", "4"},
                           {agent, "7"},
                           {"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"}});
    EXPECT_EQ(who.rank, 3) << agent;
  }
}

TEST(Environment, AShellOfSrunAndTheScriptOfSbatchContradictNothing) {
  Settings variables{{"RANK", "1"},
                     {"WORLD_SIZE", "4"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "1"},
                     {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(read(variables).rank, 1) << "srun --pty";
  for (const char* rank : {"PMIX_RANK", "PALS_RANKID"}) {
    Settings with_more = variables;
    with_more[rank] = "0";
    EXPECT_EQ(read(with_more).rank, 1) << "srun --pty with " << rank;
  }
  variables["SLURM_NTASKS"] = "4";
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(read(variables).rank, 1) << "sbatch";
}

// Rank 2 of 4, two on each of two hosts.
const Settings of_two_hosts{
    {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}};

TEST(Environment, TheMasterIsGivenByMasterAddrAndPort) {
  struct Case {
    const char* address;
    const char* port;
    const char* master;
  };
  for (const Case& each : {Case{"node1", "29400", "node1:29400"},
                           {"10.0.0.1", "1", "10.0.0.1:1"},
                           {"fd00::1", "65535", "[fd00::1]:65535"}}) {
    Settings variables = of_two_hosts;
    variables["MASTER_ADDR"] = each.address;
    variables["MASTER_PORT"] = each.port;
    EXPECT_EQ(read(variables).master, each.master);
    EXPECT_FALSE(read(variables).master_is_taken);
  }
  EXPECT_EQ(read(of_two_hosts).master, "");
}

TEST(Environment, ARankWithoutHostInformationMayBeAloneOnItsHost) {
  Settings variables{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "29400"}};
  variables["MASTER_ADDR"] = "trainer-0.trainer";
  EXPECT_EQ(read(variables).local_world_size, 1);
  EXPECT_EQ(read(variables).local_rank, 0);
  for (const char* loopback : {"localhost", "127.0.0.1", "::1"}) {
    variables["MASTER_ADDR"] = loopback;
    EXPECT_EQ(read(variables).local_world_size, 4) << loopback;
  }
}

TEST(Environment, NamesTheMissingOneOfMasterAddrAndPortOnSeveralHosts) {
  for (const char* there : {"MASTER_ADDR", "MASTER_PORT"}) {
    Settings variables = of_two_hosts;
    variables[there] = "1";
    const std::string text = refusal_of(variables);
    const std::string absent = there == std::string("MASTER_ADDR") ? "MASTER_PORT" : "MASTER_ADDR";
    EXPECT_NE(text.find(there + std::string(" is set, but " + absent)), text.npos) << text;
  }
}

TEST(Environment, AMasterPortThatIsNoneIsRefused) {
  for (const char* wrong : {"0", "65536", "-1", "http"}) {
    Settings variables = of_two_hosts;
    variables["MASTER_ADDR"] = "node1";
    variables["MASTER_PORT"] = wrong;
    EXPECT_NE(refusal_of(variables).find("MASTER_PORT"), std::string::npos) << wrong;
  }
}

TEST(Environment, UnderTorchrunTheMasterIsTakenWhenItKeepsTheStore) {
  Settings variables = of_two_hosts;
  variables.insert({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29400"}});
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(read(variables).master_is_taken);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(read(variables).master_is_taken);
}

// Task 2 of 3: two on node03 and one on node07.
const Settings of_slurm{{"SLURM_PROCID", "2"},
                        {"SLURM_NTASKS", "3"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_JOB_ID", "7"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NODELIST", "node[03,07]"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};

TEST(Environment, TasksOfSlurmThatAreUnevenlySpreadKnowTheirHosts) {
  Settings variables = of_slurm;
  EXPECT_EQ(read(variables).local_world_size, 1);
  EXPECT_EQ(read(variables).local_rank, 0);
  variables["SLURM_NODEID"] = "0";
  EXPECT_EQ(read(variables).local_world_size, 2);
  variables["SLURM_NODEID"] = "2";
  EXPECT_NE(refusal_of(variables).find("node 2"), std::string::npos);
}

TEST(Environment, SlurmStepVariablesTakePrecedenceOverThoseOfTheJob) {
  Settings variables = of_slurm;
  variables["SLURM_TASKS_PER_NODE"] = "8(x4)";
  variables["SLURM_NTASKS_PER_NODE"] = "8";
  variables["SLURM_JOB_NODELIST"] = "node[01-07]";
  const auto who = read(variables);
  EXPECT_EQ(who.local_world_size, 1);
  EXPECT_TRUE(who.master.starts_with("node03:")) << who.master;
}

TEST(Environment, UnderSrunWithPmi2HostsAreThoseOfSlurm) {
  Settings variables = of_slurm;
  variables.insert({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_JOBID", "7.0"}});
  const auto who = read(variables);
  EXPECT_EQ(who.launcher, "PMI");
  EXPECT_EQ(who.local_world_size, 1);
  EXPECT_EQ(who.master, read(of_slurm).master);
}

TEST(Environment, RanksThatAreNotSlurmsTasksTakeNothingFromIt) {
  Settings variables = of_slurm;
  variables.insert(
      {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}});
  const auto who = read(variables);
  EXPECT_EQ(who.local_world_size, 3);
  EXPECT_EQ(who.master, "");
}

TEST(Environment, TheMasterOfSlurmsTasksIsTheirFirstNodeAtAPortOfTheStep) {
  Settings variables = of_slurm;
  const std::string first = read(variables).master;
  EXPECT_EQ(first, "node03:" + std::to_string(job_port(7, 0)));
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE(read(variables).master, first);
  variables["SLURM_STEP_RESV_PORTS"] = "12004-12006";
  EXPECT_EQ(read(variables).master, "node03:12004");
  variables["MASTER_ADDR"] = "fast7";
  variables["MASTER_PORT"] = "29400";
  EXPECT_EQ(read(variables).master, "fast7:29400");
}

const Settings of_open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", "prterun-node1-77@1"}};
const Settings of_mpich{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

// Tasks of one step on one host.
const Settings of_slurm_here{{"SLURM_PROCID", "1"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_LOCALID", "1"},
                             {"SLURM_STEP_NUM_NODES", "1"},
                             {"SLURM_JOB_ID", "7"},
                             {"SLURM_STEP_ID", "3"},
                             {"SLURM_STEP_NODELIST", "node03"}};

TEST(Environment, OnOneHostTheMasterIsLoopbackAtAPortOfTheJob) {
  const auto of = [](Settings variables, const Settings& others) {
    for (const auto& [key, value] : others) variables[key] = value;
    const LaunchEnvironment who = read(variables);
    EXPECT_TRUE(who.master_is_local);
    EXPECT_TRUE(who.master.starts_with("127.0.0.1:")) << who.master;
    const int port = std::stoi(who.master.substr(who.master.find(':') + 1));
    EXPECT_TRUE(port >= first_job_port && port < first_job_port + job_ports) << port;
    return port;
  };
  const Settings rank_0{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
  const int port = of(of_open_mpi, {});
  EXPECT_EQ(of(of_open_mpi, rank_0), port);
  EXPECT_NE(of(of_open_mpi, {{"PMIX_NAMESPACE", "prterun-node1-78@1"}}), port);
  EXPECT_NE(of(of_mpich, {{"PMI_JOBID", "1"}}), of(of_mpich, {{"PMI_JOBID", "2"}}));
  EXPECT_EQ(of(of_slurm_here, {}), job_port(7, 3));
  EXPECT_EQ(of(of_slurm_here, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), job_port(7, 3));
}

TEST(Environment, OnOneHostItIsEmptyIfTwoJobsCouldHaveTheSame) {
  Settings variables = of_mpich;
  variables["HYDI_CONTROL_FD"] = "7";  // The same in all jobs of MPICH's mpiexec.
  EXPECT_EQ(read(variables).master, "");
  variables["SLURM_JOB_ID"] = "7";  // Two of them may run in one job of SLURM.
  EXPECT_EQ(read(variables).master, "");
  variables["MASTER_PORT"] = "29400";
  EXPECT_EQ(read(variables).master, "127.0.0.1:29400");
  EXPECT_TRUE(read(variables).master_is_local);
  variables["MASTER_ADDR"] = "node1";
  EXPECT_EQ(read(variables).master, "node1:29400");
  EXPECT_FALSE(read(variables).master_is_local);
  variables["MASTER_PORT"] = "0";
  EXPECT_NE(refusal_of(variables).find("MASTER_PORT=0"), std::string::npos);
}

TEST(Environment, OnOneHostOnlyALauncherChoosesAMaster) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29400"}}).master, "");
  EXPECT_FALSE(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).master_is_local);
}

}  // namespace
}  // namespace lockstep::job::environment_test
