// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/launchers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/launcher_variables.h"

namespace lockstep {
namespace {

job::Variables variables_of_process() {
  return job::Variables([](const char* key) -> const char* { return std::getenv(key); });
}

}  // namespace

bool is_mpi_launcher(std::string_view launcher) {
  const auto sets = job::launcher_variables();
  const auto set = std::ranges::find(sets, launcher, &job::LauncherVariables::launcher);
  if (set == sets.end()) return false;
  return set->is_mpi || (set->name == "flux" && read_variable("PMIX_RANK") != nullptr);
}

bool is_launched() {
  const job::Variables variables = variables_of_process();
  const auto has_rank = [&](const job::LauncherVariables& set) {
    return !set.is_bare() && variables.has(set.rank) &&
           (!set.is_slurm() || job::is_task_of_srun(variables));
  };
  return variables.has("LOCKSTEP_LAUNCHER") ||
         std::ranges::any_of(job::launcher_variables(), has_rank);
}

int earlier_starts() {
  constexpr const char* key = "LOCKSTEP_INCARNATION";
  const int starts = variables_of_process().number(key).value_or(0);
  require(starts >= 0, [&] { return fmt::format("{}={} is negative", key, starts); });
  return starts;
}

std::optional<std::chrono::milliseconds> straggler_limit() {
  constexpr const char* key = "LOCKSTEP_STRAGGLER_MS";
  const std::optional<int> limit = variables_of_process().number(key);
  require(limit.value_or(1) > 0, [&] { return fmt::format("{}={} is not positive", key, *limit); });
  return limit ? std::optional(std::chrono::milliseconds(*limit)) : std::nullopt;
}

}  // namespace lockstep
