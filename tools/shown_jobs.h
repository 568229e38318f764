// What `lockstep status` and `lockstep top` have in common: which jobs they show, and how they
// write of them.
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/status.h"

namespace lockstep::tools {

// This user's jobs on this host whose id begins with `id`. Empty if there is none, unless `id` is
// empty, too.
std::optional<std::vector<JobStatus>> jobs_named(const std::string& id);

// Writes to stderr that jobs_named() has found none, and returns the exit code, 1.
int complain_of_no_job(const char* command, const std::string& id);

inline constexpr const char* no_jobs = "no jobs of this user run on this host";

// The user's name for the job; without one, the beginning of its random id.
std::string short_id(const std::string& id);

// As "1:02:03".
std::string uptime_text(double seconds);

}  // namespace lockstep::tools
