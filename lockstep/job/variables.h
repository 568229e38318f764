// Reads the environment variables of launchers, including SLURM's lists of hosts and ranks.
//
// Thread safety: the lookup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::job {

// Empty variables and service links (base/variables.h) count as unset.
class Variables {
 public:
  explicit Variables(std::function<const char*(const char*)> lookup) : lookup_(std::move(lookup)) {}

  bool has(const char* key) const { return text(key).has_value(); }
  std::optional<std::string> text(const char* key) const;

  // Errors: misuse, naming the variable, unless unset or an integer in the type's range.
  std::optional<int> number(const char* key) const;
  std::optional<std::uint64_t> id(const char* key) const;

 private:
  template <class Number>
  std::optional<Number> parsed(const char* key) const;

  std::function<const char*(const char*)> lookup_;
};

// The range of job_port(): below the ports that Linux assigns (32768 and up). It avoids SLURM's
// services (6817 to 6819) and usual MpiParams (12000 to 12999).
constexpr int first_job_port = 20'000;
constexpr int job_ports = 7'993;

// The first 61 steps of up to 131 consecutive jobs get different ports. Without steps, pass 0.
int job_port(std::uint64_t job, std::uint64_t step);

// The first name of a list such as "node[01-03,07],gpu1". Errors: misuse for an unclosed bracket or
// an empty name.
std::string first_of_node_list(std::string_view list);

// Node `node`'s tasks in a list such as "2(x3),1". Errors: misuse for another format or a short
// list.
int tasks_on_node(std::string_view tasks_per_node, int node);

// For this step and node; empty if SLURM does not set it.
std::optional<int> slurm_local_world_size(const Variables& variables);

// The first port that SLURM has reserved for this step (MpiParams=ports=...), else job_port().
// Empty if SLURM sets neither ports nor the job.
std::optional<int> slurm_port(const Variables& variables);

// Where rank 0 may listen: the step's or job's first node, slurm_port(). Empty if either is unset.
std::string slurm_master(const Variables& variables);

}  // namespace lockstep::job
