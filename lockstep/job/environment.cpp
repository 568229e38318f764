// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/launcher_variables.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/variables.h"

namespace lockstep {
namespace {

using job::LauncherVariables;
using job::Variables;

constexpr const char* loopback = "127.0.0.1";
constexpr const char* use_srun =
    "start the program with srun, which makes each task a rank: srun PROGRAM ARGS...";

// An agent may run inside another launcher's job.
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

// The launcher outside of variables set by hand (environment.h). Sets with the
// user's WORLD_SIZE do not show whether the launcher started several
// processes.
const LauncherVariables* outer_launcher(const Variables& variables) {
  for (const LauncherVariables& set : job::launcher_variables()) {
    const bool has_own_size = std::string_view(set.world_size) != "WORLD_SIZE";
    if (set.is_bare() || !has_own_size || !set.is_complete(variables)) continue;
    const bool counts = !set.is_slurm() ||
                        (job::is_task_of_srun(variables) && variables.number(set.world_size) != 1);
    if (counts) return &set;
  }
  return nullptr;
}

void require_outer_launcher_agrees(const LaunchEnvironment& found, const Variables& variables) {
  const LauncherVariables* outer = outer_launcher(variables);
  if (outer == nullptr) return;
  const int rank = *variables.number(outer->rank);
  const int world_size = *variables.number(outer->world_size);
  require(found.rank == rank && found.world_size == world_size, [&] {
    return fmt::format(
        "RANK={} and WORLD_SIZE={} contradict {}, which has started this process with {}={} and "
        "{}={}: unset RANK and WORLD_SIZE, or make them agree, or set LOCKSTEP_LAUNCHER=env where "
        "they are right",
        found.rank, found.world_size, outer->launcher, outer->rank, rank, outer->world_size,
        world_size);
  });
}

bool agrees(const LauncherVariables& set, const LaunchEnvironment& found,
            const Variables& variables) {
  return set.is_complete(variables) && (!set.is_slurm() || job::is_task_of_srun(variables)) &&
         variables.number(set.rank) == found.rank &&
         variables.number(set.world_size) == found.world_size;
}

struct LocalPlace {
  const LauncherVariables* set;
  int world_size;
};

std::optional<LocalPlace> local_place_in(const LauncherVariables& set, int world_size,
                                         const Variables& variables) {
  const auto number = [&](const char* key) {
    return key == nullptr ? std::nullopt : variables.number(key);
  };
  auto size = number(set.local_world_size);
  if (!size && set.is_slurm()) size = job::slurm_local_world_size(variables);
  if (size) return LocalPlace{&set, *size};
  const auto hosts = number(set.hosts);
  if (!hosts || *hosts < 1) return std::nullopt;
  const int even = (world_size + *hosts - 1) / *hosts;
  return LocalPlace{&set,
                    std::min(world_size, std::max(even, number(set.local_rank).value_or(0) + 1))};
}

struct Chosen {
  const LauncherVariables* set;
  std::optional<LocalPlace> local;  // Empty if no launcher gives the ranks per host.
  bool is_by_slurm;
};

// If `set` lacks the ranks per host, takes them from the first other launcher with equal rank and
// world size. Variables of `lockstep run` are complete.
Chosen complete(const LauncherVariables& set, const LaunchEnvironment& found,
                const Variables& variables) {
  Chosen chosen{&set, local_place_in(set, found.world_size, variables), set.is_slurm()};
  if (set.is_bare() && is_of_agent(variables)) return chosen;
  for (const LauncherVariables& other : job::launcher_variables()) {
    if (&other == &set || !agrees(other, found, variables)) continue;
    if (!chosen.local) chosen.local = local_place_in(other, found.world_size, variables);
    chosen.is_by_slurm = chosen.is_by_slurm || other.is_slurm();
  }
  return chosen;
}

// The default of LaunchEnvironment::local_world_size.
// With 1, the rendezvous detects who shares a host.
int unknown_local_world_size(const Chosen& chosen, int world_size, const Variables& variables) {
  if (!chosen.set->is_bare()) return 1;
  const auto master = variables.text("MASTER_ADDR");
  const bool is_here = !master || variables.has(chosen.set->local_rank) || *master == "localhost" ||
                       *master == "::1" || master->starts_with("127.");
  return is_here ? world_size : 1;
}

void read_local(LaunchEnvironment& found, const Chosen& chosen, const Variables& variables) {
  const LauncherVariables& set = chosen.local ? *chosen.local->set : *chosen.set;
  found.local_world_size = chosen.local
                               ? chosen.local->world_size
                               : unknown_local_world_size(chosen, found.world_size, variables);
  const auto rank = set.local_rank == nullptr || (!chosen.local && !set.is_bare())
                        ? std::nullopt
                        : variables.number(set.local_rank);
  found.local_rank = rank.value_or(found.rank % std::max(1, found.local_world_size));
  const char* const rank_key = set.local_rank == nullptr ? "the local rank" : set.local_rank;
  const char* const size_key = set.local_world_size == nullptr
                                   ? "the ranks per host in its launcher's variables"
                                   : set.local_world_size;
  require_below(found.local_rank, rank_key, found.local_world_size, size_key);
  require(found.local_world_size <= found.world_size, [&] {
    return fmt::format("{}={} is more than {}={}", size_key, found.local_world_size,
                       chosen.set->world_size, found.world_size);
  });
}

std::vector<const LauncherVariables*> sets_of(const Chosen& chosen) {
  if (!chosen.local || chosen.local->set == chosen.set) return {chosen.set};
  return {chosen.set, chosen.local->set};
}

std::string job_id(const Chosen& chosen, const Variables& variables) {
  if (const auto ours = variables.text("LOCKSTEP_JOB_ID")) return *ours;
  std::string id(chosen.set->launcher);
  const auto add = [&](const char* key) {
    const auto value = key == nullptr ? std::nullopt : variables.text(key);
    if (value) id += fmt::format(" {}={}", key, *value);
  };
  for (const LauncherVariables* const set : sets_of(chosen)) std::ranges::for_each(set->job, add);
  std::ranges::for_each(chosen.set->further, add);  // Those of other sets may differ between hosts.
  return id;
}

bool has_job_id(const Chosen& chosen, const Variables& variables) {
  const auto is_set = [&](const char* key) { return key != nullptr && variables.has(key); };
  return is_set("LOCKSTEP_JOB_ID") ||
         std::ranges::any_of(sets_of(chosen), [&](const LauncherVariables* set) {
           return std::ranges::any_of(set->job, is_set);
         });
}

// MPICH's mpiexec sets no job id, but one process per host creates socket pairs to all ranks. Empty
// if no ancestor created the socket.
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

// Probably unused on this host; empty if no variable distinguishes jobs.
std::optional<int> port_of_job(const Chosen& chosen, const Variables& variables) {
  if (chosen.is_by_slurm) return job::slurm_port(variables);
  std::string id = job_id(chosen, variables);
  if (!has_job_id(chosen, variables)) {
    const auto server = server_of_pmi(variables);
    if (!server) return std::nullopt;
    id += fmt::format(" by process {}", *server);
  }
  return job::job_port(hash_of_elements(id), 0);
}

// With all ranks on one host, MASTER_PORT alone distinguishes jobs.
std::string master(const LaunchEnvironment& found, const Chosen& chosen,
                   const Variables& variables) {
  const bool several_hosts = found.local_world_size < found.world_size;
  const auto address = variables.text("MASTER_ADDR");
  const auto port = variables.number("MASTER_PORT");
  const bool is_alone = !several_hosts && !chosen.set->is_bare();
  if (port && (address || is_alone)) {
    require(*port > 0 && *port <= 65535,
            [&] { return fmt::format("MASTER_PORT={} is not a port: 1 to 65535", *port); });
    return to_text(address.value_or(loopback), *port);
  }
  if (is_alone) {
    const auto port_of_this = port_of_job(chosen, variables);
    return port_of_this ? to_text(address.value_or(loopback), *port_of_this) : std::string();
  }
  if (!several_hosts) return {};
  require(!address && !port, [&] {
    return fmt::format("{} is set, but {} is not: ranks of several hosts need both or neither",
                       address ? "MASTER_ADDR" : "MASTER_PORT",
                       address ? "MASTER_PORT" : "MASTER_ADDR");
  });
  return chosen.is_by_slurm ? job::slurm_master(variables) : std::string();
}

int attempt(const Variables& variables) {
  for (const char* key : {"LOCKSTEP_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"})
    if (const auto value = variables.number(key)) {
      require(*value >= 0, [&] { return fmt::format("{}={} is negative", key, *value); });
      return *value;
    }
  return 0;
}

std::string launcher_name(const LauncherVariables& set, const Variables& variables) {
  if (set.is_bare() && variables.has("LOCKSTEP_AGENT_FD")) return "lockstep run";
  if (set.is_bare() && variables.has("TORCHELASTIC_RUN_ID")) return "torchrun";
  return std::string(set.launcher);
}

// sbatch starts its script once: a rank in the script would wait for missing tasks.
void require_not_in_script(const LauncherVariables& set, int tasks, const Variables& variables) {
  require(!set.is_slurm() || job::is_task_of_srun(variables) || tasks == 1, [&] {
    return fmt::format(
        "SLURM's job {} has {} tasks (SLURM_NTASKS), and this process is none of them: a script "
        "of sbatch or a shell of salloc has started it; to do: {}",
        variables.text("SLURM_JOB_ID").value_or("without a name"), tasks, use_srun);
  });
}

LaunchEnvironment read(const LauncherVariables& set, bool is_asked_for,
                       const Variables& variables) {
  LaunchEnvironment found;
  found.launcher = launcher_name(set, variables);
  found.rank = *variables.number(set.rank);
  found.world_size = *variables.number(set.world_size);
  require_below(found.rank, set.rank, found.world_size, set.world_size);
  require_not_in_script(set, found.world_size, variables);
  if (set.is_bare() && !is_of_agent(variables) && !is_asked_for)
    require_outer_launcher_agrees(found, variables);

  const Chosen chosen = complete(set, found, variables);
  read_local(found, chosen, variables);
  found.job_id = job_id(chosen, variables);
  found.agent_fd = variables.number("LOCKSTEP_AGENT_FD");
  found.attempt = attempt(variables);
  found.store = variables.text("LOCKSTEP_STORE").value_or("");
  found.master = master(found, chosen, variables);
  found.master_is_local = !set.is_bare() && found.local_world_size == found.world_size &&
                          !(variables.has("MASTER_ADDR") && variables.has("MASTER_PORT"));
  found.master_is_taken = set.is_bare() && !found.master.empty() &&
                          variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return found;
}

LaunchEnvironment alone() {
  LaunchEnvironment found;
  found.launcher = "none";
  found.job_id = fmt::format("none by process {}", this_process());
  return found;
}

// The variables of partially set launchers; without one, the names of all.
std::string variables_found(const std::optional<std::string>& asked, const Variables& variables) {
  std::string incomplete, names, last;
  for (const LauncherVariables& set : job::launcher_variables()) {
    if (asked && !job::is_named(set, *asked)) continue;
    const auto state = [&](const char* key) { return variables.text(key).value_or("unset"); };
    const std::string pair = fmt::format("{} ({}) and {} ({})", set.rank, state(set.rank),
                                         set.world_size, state(set.world_size));
    const bool is_begun = variables.has(set.rank) || asked;
    if (is_begun && pair != last) incomplete += (incomplete.empty() ? "" : ", ") + pair;
    if (names.find(set.rank) == names.npos)
      names += (names.empty() ? std::string() : ", ") + set.rank;
    last = pair;
  }
  return incomplete.empty() ? fmt::format("none of {} is set", names)
                            : fmt::format("found {}", incomplete);
}

[[noreturn]] void throw_nothing_found(const std::optional<std::string>& asked,
                                      const Variables& variables) {
  std::string text =
      asked
          ? fmt::format("LOCKSTEP_LAUNCHER={}, but that launcher has not given this process a rank",
                        *asked)
          : "no launcher has given this process a rank";
  text += fmt::format(": {}; caused by the start of process {} without a launcher; to do: ",
                      variables_found(asked, variables), this_process());
  if (variables.has("PMIX_RANK") || variables.has("PALS_RANKID"))
    text += "pass WORLD_SIZE to all ranks, which PMIx and PALS do not; or ";
  text +=
      variables.has("SLURM_JOB_ID") ? use_srun : "start it with: lockstep run -n 2 PROGRAM ARGS";
  throw Error(Fault::misuse, text);
}

}  // namespace

LaunchEnvironment read_environment(const std::function<const char*(const char*)>& lookup) {
  const Variables variables(lookup);
  const auto asked = variables.text("LOCKSTEP_LAUNCHER");
  if (asked == "none") return alone();
  const auto counts = [&](const LauncherVariables& set) {
    return !asked || job::is_named(set, *asked);
  };
  const auto sets = job::launcher_variables();
  require(std::ranges::any_of(sets, counts), [&] {
    return fmt::format("LOCKSTEP_LAUNCHER='{}' is not one of: {}", clean_text(*asked, 100),
                       job::launcher_names());
  });
  for (const LauncherVariables& set : sets)
    if (counts(set) && set.is_complete(variables)) return read(set, asked.has_value(), variables);
  throw_nothing_found(asked, variables);
}

LaunchEnvironment read_environment() {
  return read_environment([](const char* key) -> const char* { return ::getenv(key); });
}

}  // namespace lockstep
