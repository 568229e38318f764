// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/launchers.h"

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/variables.h"
#include "lockstep/job/launcher_variables.h"

namespace lockstep {

bool is_mpi_launcher(std::string_view launcher) {
  const auto sets = job::launcher_variables();
  const auto set = std::ranges::find(sets, launcher, &job::LauncherVariables::launcher);
  if (set == sets.end()) return false;
  return set->is_mpi || (set->name == "flux" && read_variable("PMIX_RANK") != nullptr);
}

bool is_launched() {
  const job::Variables variables([](const char* key) -> const char* { return std::getenv(key); });
  const auto has_rank = [&](const job::LauncherVariables& set) {
    return !set.is_bare() && variables.has(set.rank) &&
           (!set.is_slurm() || job::is_task_of_srun(variables));
  };
  return variables.has("LOCKSTEP_LAUNCHER") ||
         std::ranges::any_of(job::launcher_variables(), has_rank);
}

}  // namespace lockstep
