// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/launcher_variables.h"

namespace lockstep::job {
namespace {

// Launchers that may run inside others come first: mpirun adds its variables to a SLURM step's.
//
// PALS and PMIx have no number of ranks: they usually come with PMI's, Open MPI's or SLURM's
// variables, or the user's WORLD_SIZE. SLURM lists the ranks of each host:
// slurm_local_world_size().
constexpr LauncherVariables sets[] = {
    {"env",
     "environment",
     false,
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "GROUP_WORLD_SIZE",
     {},
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"openmpi",
     "Open MPI",
     true,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_MCA_orte_num_nodes",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"mvapich2",
     "MVAPICH2",
     true,
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"PMI_JOBID"},
     {"HYDI_CONTROL_FD", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"jsm",
     "JSM",
     true,
     "JSM_NAMESPACE_RANK",
     "JSM_NAMESPACE_SIZE",
     "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE",
     nullptr,
     {"PMIX_NAMESPACE"},
     {"LSB_JOBID"}},
    {"pmi",
     "PMI",
     true,
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     {"PMI_JOBID"},
     {"HYDI_CONTROL_FD", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"pmi",
     "PMI",
     true,
     "PMI_RANK",
     "PMI_SIZE",
     "PMI_LOCAL_RANK",
     "PMI_LOCAL_SIZE",
     nullptr,
     {"PMI_JOBID"}},
    {"pals",
     "PALS",
     true,
     "PALS_RANKID",
     "PMI_SIZE",
     "PALS_LOCAL_RANKID",
     "PALS_LOCAL_SIZE",
     nullptr,
     {"PALS_APID"}},
    {"pals",
     "PALS",
     true,
     "PALS_RANKID",
     "WORLD_SIZE",
     "PALS_LOCAL_RANKID",
     "PALS_LOCAL_SIZE",
     nullptr,
     {"PALS_APID"}},
    {"flux",
     "Flux",
     false,
     "FLUX_TASK_RANK",
     "FLUX_JOB_SIZE",
     "FLUX_TASK_LOCAL_ID",
     nullptr,
     "FLUX_JOB_NNODES",
     {"FLUX_JOB_ID"}},
    {"slurm",
     "SLURM",
     false,
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "SLURM_STEP_NUM_NODES",
     {},
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"pmix",
     "PMIx",
     true,
     "PMIX_RANK",
     "WORLD_SIZE",
     nullptr,
     nullptr,
     nullptr,
     {"PMIX_NAMESPACE"}},
};

}  // namespace

bool LauncherVariables::is_complete(const Variables& variables) const {
  return variables.has(rank) && variables.has(world_size);
}

std::span<const LauncherVariables> launcher_variables() { return sets; }

std::string launcher_names() {
  std::string names = "none, mpi";
  std::string_view last;
  for (const LauncherVariables& set : sets) {
    if (set.name != last) names.append(", ").append(set.name);
    last = set.name;
  }
  return names;
}

bool is_named(const LauncherVariables& set, std::string_view value) {
  return set.name == value || (value == "mpi" && set.is_mpi);
}

bool is_task_of_srun(const Variables& variables) {
  constexpr std::uint64_t last_step = 0xffff'fff0;  // Above: script or interactive shell.
  const auto step = variables.id("SLURM_STEP_ID");
  return step && *step <= last_step;
}

}  // namespace lockstep::job
