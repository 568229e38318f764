// SPDX-License-Identifier: Apache-2.0
#include "tools/shown_jobs.h"

#include <cstdio>

#include "lockstep/base/text.h"

namespace lockstep::tools {
namespace {

constexpr int no_such_job = 1;

}  // namespace

std::optional<std::vector<JobStatus>> jobs_named(const std::string& id) {
  std::vector<JobStatus> jobs = running_jobs();
  std::erase_if(jobs, [&](const JobStatus& job) { return !job.job_id.starts_with(id); });
  if (jobs.empty() && !id.empty()) return std::nullopt;
  return jobs;
}

int complain_of_no_job(const char* command, const std::string& id) {
  std::fprintf(stderr, "%s: no job %s of this user runs on this host\n", command,
               clean_text(id, 4096).c_str());
  return no_such_job;
}

std::string short_id(const std::string& id) {
  const auto dot = id.rfind('.');
  return dot == id.npos ? id.substr(0, 8) : id.substr(0, dot);
}

std::string uptime_text(double seconds) {
  const auto all = static_cast<long long>(seconds);
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", all / 3600, all / 60 % 60, all % 60);
  return text;
}

}  // namespace lockstep::tools
