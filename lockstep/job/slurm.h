// What SLURM's variables say of a job step beyond rank and size.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/variables.h"

namespace lockstep {

// The ports that slurm_port() chooses from: below those that Linux hands out by itself (32768 and
// up), beside those of SLURM's own services (6817 to 6819) and its usual MpiParams (12000 and up).
constexpr int first_slurm_port = 20'000;
constexpr int slurm_ports = 7'993;

// One for each step of a job. Consecutive jobs, and the first 61 steps of one, all have another.
int slurm_port(std::uint64_t job, std::uint64_t step);

// The first name of a list such as "node[01-03,07],gpu1".
// Errors: misuse for a bracket that is not closed, or no name.
std::string first_of_node_list(std::string_view list);

// How many tasks are on the node of this number, of "2(x3),1".
// Errors: misuse when this is no such list, or it ends before.
int tasks_on_node(std::string_view tasks_per_node, int node);

// On this node, of the step that this process is in. Empty when SLURM does not say.
std::optional<int> slurm_local_world_size(const Variables& variables);

// HOST:PORT where rank 0 of the step may listen: on its first node, at the first port that SLURM
// has reserved for the step (MpiParams=ports=...), else at slurm_port(). Empty when SLURM does not
// name its nodes.
std::string slurm_master(const Variables& variables);

}  // namespace lockstep
