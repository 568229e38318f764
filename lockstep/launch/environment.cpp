// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/environment.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using VariableMap = std::map<std::string, std::string, std::less<>>;

VariableMap parse(const char* const* environment) {
  VariableMap variables;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const auto equals = entry.find('=');
    if (equals != entry.npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

// One host is one torchrun node, and all ranks have one role.
VariableMap torchrun_variables(const RankPlace& place) {
  const Round& round = place.round;
  const std::string rank = std::to_string(round.first_rank + place.local_rank);
  const std::string world_size = std::to_string(round.world_size);
  return {{"RANK", rank},
          {"LOCAL_RANK", std::to_string(place.local_rank)},
          {"ROLE_RANK", rank},
          {"WORLD_SIZE", world_size},
          {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
          {"ROLE_WORLD_SIZE", world_size},
          {"ROLE_NAME", "default"},
          {"GROUP_RANK", std::to_string(round.node)},
          {"GROUP_WORLD_SIZE", std::to_string(round.nodes)},
          {"MASTER_ADDR", round.master_addr},
          {"MASTER_PORT", std::to_string(round.master_port)},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.restarts)},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(place.max_restarts)},
          {"TORCHELASTIC_RUN_ID", round.job_id},
          {"TORCHELASTIC_ERROR_FILE", place.error_file},
          // With True, c10d would expect the launcher to listen on MASTER_PORT.
          {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}

// A training step frees and takes the same tens of megabytes again and again. By default glibc
// returns such memory to the kernel, which must then clear every page again: at large batches that
// is a fifth of the step. Users' own malloc settings are kept.
void keep_freed_memory(VariableMap& variables) {
  const auto is_mallocs = [](const auto& entry) {
    return entry.first.starts_with("MALLOC_") || entry.first == "GLIBC_TUNABLES";
  };
  if (std::any_of(variables.begin(), variables.end(), is_mallocs)) return;
  variables.emplace("MALLOC_MMAP_THRESHOLD_", std::to_string(std::int64_t{1} << 30));
  variables.emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(std::int64_t{1} << 40));
}

}  // namespace

std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited) {
  VariableMap variables = parse(inherited);
  for (auto& [key, value] : torchrun_variables(place)) variables.insert_or_assign(key, value);
  variables.emplace("OMP_NUM_THREADS", std::to_string(place.threads));
  keep_freed_memory(variables);
  for (const char* secret : {"LOCKSTEP_JOB_TOKEN", "LOCKSTEP_JOB_TOKEN_FILE"})
    variables.erase(secret);  // A rank gets the token from its agent.
  variables.insert_or_assign("LOCKSTEP_JOB_ID", place.round.job_id);
  variables.insert_or_assign("LOCKSTEP_ATTEMPT", std::to_string(place.round.attempt));
  variables.erase("LOCKSTEP_STORE");
  if (!place.round.store.empty()) variables.emplace("LOCKSTEP_STORE", place.round.store);
  variables.insert_or_assign("LOCKSTEP_AGENT_FD", std::to_string(place.agent_fd));
  variables.erase("LOCKSTEP_TERMINAL");
  if (place.columns) variables.emplace("LOCKSTEP_TERMINAL", std::to_string(*place.columns));

  std::vector<std::string> environment;
  for (const auto& [key, value] : variables) environment.push_back(key + "=" + value);
  return environment;
}

std::string random_job_id() {
  std::array<std::uint64_t, 2> bits{};
  // getrandom() gives up to 256 bytes completely or not at all.
  if (::getrandom(bits.data(), sizeof bits, 0) != sizeof bits) throw_errno("getrandom");
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

}  // namespace lockstep
