// Command line of `lockstep report`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

struct ReportCommandLine {
  std::vector<std::string> files = {};
  std::string html = {};
  std::vector<int> ranks = {};  // For the what-if questions; empty for the defaults.
};

// Does not return after --help or a wrong command line.
ReportCommandLine parse_report(int argc, char** argv);

}  // namespace lockstep::tools
