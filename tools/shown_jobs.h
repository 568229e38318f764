// Jobs for `lockstep status` and `lockstep top`. Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/status.h"

namespace lockstep::tools {

// This user's jobs on this host whose id begins with `id`; empty if none matches a non-empty `id`.
std::optional<std::vector<JobStatus>> jobs_named(const std::string& id);

// Returns the exit code, 1.
int complain_of_no_job(const char* command, const std::string& id);

inline constexpr const char* no_jobs = "no jobs of this user run on this host";

// The job's name, or the beginning of its random id.
std::string short_id(const std::string& id);

// "1:02:03".
std::string uptime_text(double seconds);

}  // namespace lockstep::tools
