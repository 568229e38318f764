// Reads the environment variables of launchers, including SLURM's lists of hosts and ranks.
//
// Thread safety: that of the lookup; getenv() must not run concurrently with setenv().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::job {

// Looks up variables. An empty one and a service link (base/variables.h) count as unset.
class Variables {
 public:
  explicit Variables(std::function<const char*(const char*)> lookup) : lookup_(std::move(lookup)) {}

  bool has(const char* key) const { return text(key).has_value(); }
  std::optional<std::string> text(const char* key) const;

  // Errors: misuse, naming the variable, when it is set but not an integer in the type's range.
  std::optional<int> number(const char* key) const;
  std::optional<std::uint64_t> id(const char* key) const;

 private:
  template <class Number>
  std::optional<Number> parsed(const char* key) const;

  std::function<const char*(const char*)> lookup_;
};

// The range of job_port(). It is below the ports that Linux assigns (32768 and up), and excludes
// SLURM's services (6817 to 6819) and its usual MpiParams (12000 and up).
constexpr int first_job_port = 20'000;
constexpr int job_ports = 7'993;

// Returns a port for a step of a job. Consecutive jobs get different ports, and so do the first 61
// steps of a job. Launchers without steps use step 0.
int job_port(std::uint64_t job, std::uint64_t step);

// Returns the first name of a list such as "node[01-03,07],gpu1".
// Errors: misuse for an unclosed bracket or an empty list.
std::string first_of_node_list(std::string_view list);

// Returns the number of tasks on node `node` from a list such as "2(x3),1".
// Errors: misuse for another format, or when the list is too short.
int tasks_on_node(std::string_view tasks_per_node, int node);

// Returns the number of tasks of this process's step on this node; empty if SLURM does not set it.
std::optional<int> slurm_local_world_size(const Variables& variables);

// Returns a port for this process's step: the first one that SLURM has reserved for it
// (MpiParams=ports=...), else job_port(). Empty if SLURM sets neither ports nor the job.
std::optional<int> slurm_port(const Variables& variables);

// Returns HOST:PORT where rank 0 of the step may listen: its first node, and slurm_port(). Empty if
// SLURM does not set them.
std::string slurm_master(const Variables& variables);

}  // namespace lockstep::job
