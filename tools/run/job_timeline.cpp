// SPDX-License-Identifier: Apache-2.0
#include "tools/run/job_timeline.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/processes.h"
#include "lockstep/job/timeline/merge_timeline.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

// No other launcher uses it, also on a file system that hosts share.
fs::path folder_for(const fs::path& file) {
  return file.string() + ".ranks-" + host_name() + "-" + std::to_string(::getpid());
}

bool is_of_rank_0(const std::string& name) { return name.ends_with(".rank-0.spans"); }

}  // namespace

JobTimeline::JobTimeline(fs::path file, const std::string& profile)
    : file_(fs::absolute(file)), folder_(folder_for(file_)) {
  const AtomicFile probe(file_, 0);
  std::error_code error;
  fs::create_directory(folder_, error);
  if (error) throw_errno(folder_.string(), error.value());
  ::setenv(TimelineRecorder::variable, folder_.c_str(), 1);
  if (profile.empty()) return;
  ::setenv("LOCKSTEP_PROFILE", profile.c_str(), 1);
  ::setenv("KINETO_LOG_LEVEL", "99", 0);  // It would log that it begins and ends.
}

JobTimeline::~JobTimeline() {
  std::error_code not_empty;
  fs::remove(folder_, not_empty);
}

std::string JobTimeline::finish() const {
  const std::vector<std::string> names = names_in(folder_);
  if (names.empty()) return "";
  if (std::ranges::none_of(names, is_of_rank_0))
    return "spans of ranks of this host are left in " + folder_.string() +
           ": lockstep timeline merges them";
  const TimelineSummary summary = merge_timeline({folder_}, file_);
  fs::remove_all(folder_);
  return "timeline " + file_.string() + ": " + describe(summary);
}

}  // namespace lockstep::tools
