// Shared by `lockstep status` and `lockstep top`: selection and formatting of jobs.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/status.h"

namespace lockstep::tools {

// This user's jobs on this host whose id begins with `id`. Empty if there is none and `id` is not
// empty.
std::optional<std::vector<JobStatus>> jobs_named(const std::string& id);

// Writes to stderr that no job was found, and returns the exit code, 1.
int complain_of_no_job(const char* command, const std::string& id);

inline constexpr const char* no_jobs = "no jobs of this user run on this host";

// The user's name for the job, or the beginning of its random id.
std::string short_id(const std::string& id);

// For example "1:02:03".
std::string uptime_text(double seconds);

}  // namespace lockstep::tools
