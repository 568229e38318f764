// Command line of `lockstep plan`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep::tools {

constexpr const char* plan_command = "lockstep plan";

struct PlanCommandLine {
  // A pipeline's schedules.
  std::string schedule = {};
  PipelineShape shape = {.ranks = 0, .microbatches = 0};
  std::vector<double> times = {1, 1, 1};
  std::string order = {};
  std::string write = {};

  // Layouts of a program.
  std::vector<std::string> program = {};  // With arguments; empty for a pipeline's schedules.
  int hosts = 1;
  std::optional<double> host_bytes = {};      // --memory
  std::optional<double> link_bandwidth = {};  // --link, in bytes a second.
  std::string profile = {};
  std::string json = {};
  int top = 20;

  std::string svg = {};
  int columns = 0;

  bool is_of_program() const { return !program.empty() || !profile.empty(); }
};

// Does not return after --help or a wrong command line.
PlanCommandLine parse_plan(int argc, char** argv);

std::vector<std::string> pipeline_schedule_names();

// "64G", "1.5T" or "512M", also with B or iB: powers of 1024. Errors: misuse.
double parse_size(std::string_view text);

// "1G", "2.5G" or "100M", also with "bit/s": bits per second, powers of 1000. Returns bytes per
// second. Errors: misuse.
double parse_link(std::string_view text);

}  // namespace lockstep::tools
