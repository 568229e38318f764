// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/processes.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/variables.h"

namespace lockstep {
namespace {

using job::Variables;

constexpr const char* loopback = "127.0.0.1";

// The variables in which one family of launchers gives a process its place.
struct Dialect {
  std::string_view launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;      // SLURM's own is a list: see slurm_local_world_size().
  const char* hosts;                 // Set when the number of ranks per host may be missing.
  std::vector<const char*> job;      // Each distinguishes this job from others on the host.
  std::vector<const char*> further;  // These do so only together, and not always.
};

// PMIx alone gives no size: Open MPI and `srun --mpi=pmix` set theirs beside it.
const std::vector<Dialect>& dialects() {
  static const std::vector<Dialect> all{
      {"environment",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "GROUP_WORLD_SIZE",
       {},
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "OMPI_MCA_orte_num_nodes",
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
       {}},
      {"PMI",
       "PMI_RANK",
       "PMI_SIZE",
       "MPI_LOCALRANKID",
       "MPI_LOCALNRANKS",
       "SLURM_STEP_NUM_NODES",
       {"PMI_JOBID"},
       {"HYDI_CONTROL_FD", "SLURM_JOB_ID", "SLURM_STEP_ID"}},
      {"SLURM",
       "SLURM_PROCID",
       "SLURM_NTASKS",
       "SLURM_LOCALID",
       nullptr,
       "SLURM_STEP_NUM_NODES",
       {},
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
  };
  return all;
}

bool speaks(const Dialect& dialect, const Variables& variables) {
  return variables.has(dialect.rank) && variables.has(dialect.world_size);
}

bool is_bare(const Dialect& dialect) { return dialect.launcher == "environment"; }
bool is_slurm(const Dialect& dialect) { return dialect.launcher == "SLURM"; }

// Whether an agent set RANK and WORLD_SIZE. It may run inside another launcher's job.
bool is_of_agent(const Variables& variables) {
  return variables.has("TORCHELASTIC_RUN_ID") || variables.has("LOCKSTEP_JOB_ID") ||
         variables.has("LOCKSTEP_AGENT_FD");
}

void require_below(int value, const char* key, int bound, const char* bound_key) {
  require(bound > 0, [&] { return fmt::format("{}={} must be at least 1", bound_key, bound); });
  require(value >= 0 && value < bound, [&] {
    return fmt::format("{}={} is not in 0..{} ({}={})", key, value, bound - 1, bound_key, bound);
  });
}

// Returns the launcher around variables that were set by hand. A single SLURM task does not count:
// it is the shell of `srun --pty`. Nor do the variables of sbatch's script, which is not a step.
const Dialect* outer_launcher(const Variables& variables) {
  for (const Dialect& dialect : dialects()) {
    if (is_bare(dialect) || !speaks(dialect, variables)) continue;
    const bool counts = !is_slurm(dialect) || (variables.has("SLURM_STEP_ID") &&
                                               variables.number(dialect.world_size) != 1);
    if (counts) return &dialect;
  }
  return nullptr;
}

void require_outer_launcher_agrees(const LaunchEnvironment& found, const Variables& variables) {
  const Dialect* outer = outer_launcher(variables);
  if (outer == nullptr) return;
  const int rank = *variables.number(outer->rank);
  const int world_size = *variables.number(outer->world_size);
  require(found.rank == rank && found.world_size == world_size, [&] {
    return fmt::format(
        "RANK={} and WORLD_SIZE={} contradict {}, which has started this process with {}={} and "
        "{}={}: unset RANK and WORLD_SIZE, or make them agree",
        found.rank, found.world_size, outer->launcher, outer->rank, rank, outer->world_size,
        world_size);
  });
}

// Whether the tasks of this process's SLURM step are the ranks.
bool ranks_are_slurms(const Dialect& dialect, const LaunchEnvironment& found,
                      const Variables& variables) {
  if (is_slurm(dialect)) return true;
  return !is_of_agent(variables) && variables.has("SLURM_STEP_ID") &&
         variables.number("SLURM_PROCID") == found.rank &&
         variables.number("SLURM_NTASKS") == found.world_size;
}

// Kubernetes operators tell a pod only its rank and rank 0's address. The ranks find out when they
// meet which of them share a host.
bool may_be_alone(const Dialect& dialect, const Variables& variables) {
  const auto master = variables.text("MASTER_ADDR");
  if (!is_bare(dialect) || variables.has(dialect.local_rank) || !master) return false;
  return *master != "localhost" && *master != "::1" && !master->starts_with("127.");
}

void read_local(LaunchEnvironment& found, const Dialect& dialect, bool by_slurm,
                const Variables& variables) {
  const char* size_key = dialect.local_world_size;
  auto size = size_key == nullptr ? std::nullopt : variables.number(size_key);
  auto rank = variables.number(dialect.local_rank);
  if (size_key == nullptr) size_key = "the tasks per node in SLURM's variables";
  if (by_slurm && !size) size = job::slurm_local_world_size(variables);
  if (by_slurm && !rank) rank = variables.number("SLURM_LOCALID");

  const int hosts =
      std::max(1, variables.number(dialect.hosts)
                      .value_or(may_be_alone(dialect, variables) ? found.world_size : 1));
  found.local_world_size = size.value_or((found.world_size + hosts - 1) / hosts);
  found.local_rank = rank.value_or(found.rank % std::max(1, found.local_world_size));
  require_below(found.local_rank, dialect.local_rank, found.local_world_size, size_key);
  require(found.local_world_size <= found.world_size, [&] {
    return fmt::format("{}={} is more than {}={}", size_key, found.local_world_size,
                       dialect.world_size, found.world_size);
  });
}

std::string job_id(const Dialect& dialect, const Variables& variables) {
  if (const auto ours = variables.text("LOCKSTEP_JOB_ID")) return *ours;
  std::string id(dialect.launcher);
  for (const auto* keys : {&dialect.job, &dialect.further})
    for (const char* key : *keys)
      if (const auto value = variables.text(key)) id += fmt::format(" {}={}", key, *value);
  return id;
}

// MPICH's mpiexec names no job. On each host a process of its own serves all ranks there, each
// through a socket that it has made. Returns that process; empty if the socket is none of a process
// above this one.
std::optional<pid_t> server_of_pmi(const Variables& variables) {
  const auto fd = variables.number("PMI_FD");
  const auto maker = fd ? peer_of(*fd) : std::nullopt;
  if (!maker) return std::nullopt;
  pid_t above = ::getppid();
  while (above > 0 && above != maker->process) {
    const auto stat = process_stat(above);
    above = stat ? stat->parent : 0;
  }
  return above > 0 ? std::optional(above) : std::nullopt;
}

// Returns a port that other jobs of this host hardly use; empty if nothing tells them from this
// one.
std::optional<int> port_of_job(const Dialect& dialect, bool by_slurm, const Variables& variables) {
  if (by_slurm) return job::slurm_port(variables);
  std::string id = job_id(dialect, variables);
  const auto is_set = [&](const char* key) { return variables.has(key); };
  if (!is_set("LOCKSTEP_JOB_ID") && std::ranges::none_of(dialect.job, is_set)) {
    const auto server = server_of_pmi(variables);
    if (!server) return std::nullopt;
    id += fmt::format(" by process {}", *server);
  }
  return job::job_port(hash_of_elements(id), 0);
}

// An explicit address for rank 0 counts on one host too, but is not required there. MASTER_PORT
// alone distinguishes jobs on one host.
std::string master(const LaunchEnvironment& found, const Dialect& dialect, bool by_slurm,
                   const Variables& variables) {
  const bool several_hosts = found.local_world_size < found.world_size;
  const auto address = variables.text("MASTER_ADDR");
  const auto port = variables.number("MASTER_PORT");
  const bool is_alone = !several_hosts && !is_bare(dialect);
  if (port && (address || is_alone)) {
    require(*port > 0 && *port <= 65535,
            [&] { return fmt::format("MASTER_PORT={} is not a port: 1 to 65535", *port); });
    return to_text(address.value_or(loopback), *port);
  }
  if (is_alone) {
    const auto chosen = port_of_job(dialect, by_slurm, variables);
    return chosen ? to_text(address.value_or(loopback), *chosen) : std::string();
  }
  if (!several_hosts) return {};
  require(!address && !port, [&] {
    return fmt::format("{} is set, but {} is not: ranks of several hosts need both or neither",
                       address ? "MASTER_ADDR" : "MASTER_PORT",
                       address ? "MASTER_PORT" : "MASTER_ADDR");
  });
  return by_slurm ? job::slurm_master(variables) : std::string();
}

int attempt(const Variables& variables) {
  for (const char* key : {"LOCKSTEP_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"})
    if (const auto value = variables.number(key)) {
      require(*value >= 0, [&] { return fmt::format("{}={} is negative", key, *value); });
      return *value;
    }
  return 0;
}

std::string launcher_name(const Dialect& dialect, const Variables& variables) {
  if (variables.has("LOCKSTEP_AGENT_FD")) return "lockstep run";
  if (is_bare(dialect) && variables.has("TORCHELASTIC_RUN_ID")) return "torchrun";
  return std::string(dialect.launcher);
}

LaunchEnvironment read(const Dialect& dialect, const Variables& variables) {
  LaunchEnvironment found;
  found.launcher = launcher_name(dialect, variables);
  found.rank = *variables.number(dialect.rank);
  found.world_size = *variables.number(dialect.world_size);
  require_below(found.rank, dialect.rank, found.world_size, dialect.world_size);
  if (is_bare(dialect) && !is_of_agent(variables)) require_outer_launcher_agrees(found, variables);

  const bool by_slurm = ranks_are_slurms(dialect, found, variables);
  read_local(found, dialect, by_slurm, variables);
  found.job_id = job_id(dialect, variables);
  found.agent_fd = variables.number("LOCKSTEP_AGENT_FD");
  found.attempt = attempt(variables);
  found.store = variables.text("LOCKSTEP_STORE").value_or("");
  found.master = master(found, dialect, by_slurm, variables);
  found.master_is_local = !is_bare(dialect) && found.local_world_size == found.world_size &&
                          !(variables.has("MASTER_ADDR") && variables.has("MASTER_PORT"));
  found.master_is_taken = is_bare(dialect) && !found.master.empty() &&
                          variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return found;
}

[[noreturn]] void throw_nothing_found(const Variables& variables) {
  std::string text = "no launcher has said who this process is. Looked for";
  for (const Dialect& dialect : dialects()) {
    const auto state = [&](const char* key) { return variables.text(key).value_or("unset"); };
    text += fmt::format("\n  {} ({}) and {} ({})", dialect.rank, state(dialect.rank),
                        dialect.world_size, state(dialect.world_size));
  }
  throw Error(Fault::misuse, text + "\nStart the program with: lockstep run -n 2 PROGRAM ARGS...");
}

}  // namespace

LaunchEnvironment read_environment(const std::function<const char*(const char*)>& lookup) {
  const Variables variables(lookup);
  for (const Dialect& dialect : dialects())
    if (speaks(dialect, variables)) return read(dialect, variables);
  throw_nothing_found(variables);
}

LaunchEnvironment read_environment() {
  return read_environment([](const char* key) -> const char* { return ::getenv(key); });
}

}  // namespace lockstep
