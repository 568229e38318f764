// `lockstep run --timeline`: a folder for the spans of this host's ranks, and the merged file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::tools {

class JobTimeline {
 public:
  // Creates the folder next to `file`, and sets the variables that pass it to ranks. Removes an
  // earlier `file`, so that it is not mistaken for this job's. `profile`: a window of steps, or
  // empty. `is_alone`: no other host. Errors: system if `file` cannot be written.
  JobTimeline(std::filesystem::path file, std::string profile, bool is_alone);

  // Removes the folder if it is empty.
  ~JobTimeline();
  JobTimeline(const JobTimeline&) = delete;
  JobTimeline& operator=(const JobTimeline&) = delete;

  // After the job. Writes `file` if rank 0 was on this host, which then has all ranks' spans.
  // Returns a line for people; empty on a host whose ranks have sent their spans. The line, and any
  // Error, names the folder if spans are left there. Errors: as merge_timeline()'s.
  std::string finish() const;

 private:
  std::string merge() const;

  const std::filesystem::path file_;
  const std::filesystem::path folder_;
  const std::string profile_;
  const bool is_alone_;
};

}  // namespace lockstep::tools
