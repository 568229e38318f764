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
#include "lockstep/base/text.h"
#include "lockstep/job/timeline/merge_timeline.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

// Follows links, as AtomicFile does.
void remove_earlier(const fs::path& file) {
  std::error_code error;
  const fs::path earlier = fs::canonical(file, error);
  if (error) return;  // No such file.
  fs::remove(earlier, error);
  if (error) throw_errno(earlier.string(), error.value());
}

// Unique, also among hosts with a shared file system, and private. First checks that `file` can be
// written, and removes an earlier one.
fs::path new_folder_for(const fs::path& file) {
  { const AtomicFile probe(file, 0); }
  remove_earlier(file);
  std::string name = file.string() + ".ranks-" + host_name() + "-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw_errno(name);
  return name;
}

bool is_of_rank_0(const std::string& name) { return name.ends_with(".rank-0.spans"); }

}  // namespace

JobTimeline::JobTimeline(fs::path file, std::string profile, bool is_alone)
    : file_(fs::absolute(file)),
      folder_(new_folder_for(file_)),
      profile_(std::move(profile)),
      is_alone_(is_alone) {
  ::setenv(TimelineRecorder::variable, folder_.c_str(), 1);
  if (profile_.empty()) return;
  ::setenv("LOCKSTEP_PROFILE", profile_.c_str(), 1);
  ::setenv("KINETO_LOG_LEVEL", "99", 0);  // Suppresses log lines.
}

JobTimeline::~JobTimeline() {
  std::error_code not_empty;
  fs::remove(folder_, not_empty);
}

std::string JobTimeline::finish() const {
  const std::vector<std::string> names = names_in(folder_);
  if (names.empty() && !is_alone_) return "";
  if (names.empty())
    return "no timeline: no rank has recorded anything, which begins in init_process_group()";
  if (std::ranges::none_of(names, is_of_rank_0))
    return "spans of ranks of this host are left in " + folder_.string() +
           ": lockstep timeline merges them";
  try {
    return merge();
  } catch (const Error& error) {
    throw Error(error.fault(), bare_text(error) + "; spans are left in " + folder_.string());
  }
}

std::string JobTimeline::merge() const {
  const TimelineSummary summary = merge_timeline({folder_}, file_);
  std::error_code kept;  // Remaining files are harmless.
  fs::remove_all(folder_, kept);
  std::string text = "timeline " + file_.string() + ": " + describe(summary);
  if (!profile_.empty() && summary.operators == 0)
    text += "; no operators, as no rank averaged gradients in " + profile_;
  return text;
}

}  // namespace lockstep::tools
