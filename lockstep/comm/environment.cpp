// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

using Lookup = std::function<const char*(const char*)>;

// The variables in which one family of launchers says who a process is.
struct Dialect {
  std::string_view launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* hosts;             // Where it is not always told how many ranks are on each.
  std::vector<const char*> job;  // Together they tell this job from others of the host.
};

const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all{
      {"environment",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "GROUP_WORLD_SIZE",
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "OMPI_MCA_orte_num_nodes",
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"PMI",
       "PMI_RANK",
       "PMI_SIZE",
       "MPI_LOCALRANKID",
       "MPI_LOCALNRANKS",
       "SLURM_STEP_NUM_NODES",
       {"PMI_JOBID", "HYDI_CONTROL_FD", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
      {"SLURM",
       "SLURM_PROCID",
       "SLURM_NTASKS",
       "SLURM_LOCALID",
       "SLURM_NTASKS_PER_NODE",
       "SLURM_STEP_NUM_NODES",
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
  };
  return all;
}

bool is_set(const Lookup& lookup, const char* key) {
  const char* text = lookup(key);
  return text != nullptr && *text != '\0';
}

std::optional<int> number(const Lookup& lookup, const char* key) {
  if (!is_set(lookup, key)) return std::nullopt;
  const char* text = lookup(key);
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  require(problem == std::errc() && stop == end,
          fmt::format("{}='{}' is not a whole number", key, text));
  return value;
}

void require_below(int value, const char* key, int bound, const char* bound_key) {
  require(bound > 0, fmt::format("{}={} must be at least 1", bound_key, bound));
  require(value >= 0 && value < bound,
          fmt::format("{}={} is not in 0..{} ({}={})", key, value, bound - 1, bound_key, bound));
}

std::string job_id(const Dialect& dialect, const Lookup& lookup) {
  if (const char* ours = lookup("LOCKSTEP_JOB_ID")) return ours;
  std::string id(dialect.launcher);
  for (const char* key : dialect.job)
    if (const char* value = lookup(key)) id += fmt::format(" {}={}", key, value);
  return id;
}

int attempt(const Lookup& lookup) {
  for (const char* key : {"LOCKSTEP_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"})
    if (const auto value = number(lookup, key)) {
      require(*value >= 0, fmt::format("{}={} is negative", key, *value));
      return *value;
    }
  return 0;
}

std::string launcher_name(const Dialect& dialect, const Lookup& lookup) {
  if (lookup("LOCKSTEP_AGENT_FD") != nullptr) return "lockstep run";
  if (dialect.rank == std::string_view("RANK") && lookup("TORCHELASTIC_RUN_ID") != nullptr)
    return "torchrun";
  return std::string(dialect.launcher);
}

LaunchEnvironment read(const Dialect& dialect, const Lookup& lookup) {
  LaunchEnvironment found;
  found.launcher = launcher_name(dialect, lookup);
  found.rank = *number(lookup, dialect.rank);
  found.world_size = *number(lookup, dialect.world_size);
  require_below(found.rank, dialect.rank, found.world_size, dialect.world_size);

  const int hosts = std::max(1, number(lookup, dialect.hosts).value_or(1));
  found.local_world_size =
      number(lookup, dialect.local_world_size).value_or((found.world_size + hosts - 1) / hosts);
  found.local_rank =
      number(lookup, dialect.local_rank).value_or(found.rank % std::max(1, found.local_world_size));
  require_below(found.local_rank, dialect.local_rank, found.local_world_size,
                dialect.local_world_size);
  require(found.local_world_size <= found.world_size,
          fmt::format("{}={} is more than {}={}", dialect.local_world_size, found.local_world_size,
                      dialect.world_size, found.world_size));
  found.job_id = job_id(dialect, lookup);
  found.agent_fd = number(lookup, "LOCKSTEP_AGENT_FD");
  found.attempt = attempt(lookup);
  if (const char* store = lookup("LOCKSTEP_STORE")) found.store = store;
  return found;
}

[[noreturn]] void throw_nothing_found(const Lookup& lookup) {
  std::string text = "no launcher has said who this process is. Looked for";
  for (const Dialect& dialect : dialects()) {
    const auto state = [&](const char* key) {
      const char* value = lookup(key);
      return value == nullptr ? "unset" : value;
    };
    text += fmt::format("\n  {} ({}) and {} ({})", dialect.rank, state(dialect.rank),
                        dialect.world_size, state(dialect.world_size));
  }
  throw Error(Fault::misuse, text + "\nStart the program with: lockstep run -n 2 PROGRAM ARGS...");
}

}  // namespace

LaunchEnvironment read_environment(const Lookup& lookup) {
  for (const Dialect& dialect : dialects())
    if (is_set(lookup, dialect.rank) && is_set(lookup, dialect.world_size))
      return read(dialect, lookup);
  throw_nothing_found(lookup);
}

LaunchEnvironment read_environment() {
  return read_environment([](const char* key) -> const char* { return ::getenv(key); });
}

}  // namespace lockstep
