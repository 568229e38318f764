// `lockstep report`: shows how runs scale, what they wait for, and what would help.

// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "tools/command_line.h"
#include "tools/report/command_line.h"
#include "tools/report/figures.h"
#include "tools/report/page.h"
#include "tools/report/run_file.h"
#include "tools/report/text.h"

namespace {

constexpr const char* command = "lockstep report";

// Uses the given paths for files of the same name.
void tell_apart(std::vector<lockstep::tools::RunFile>& runs,
                const std::vector<std::string>& files) {
  std::map<std::string, int> count;
  for (const auto& run : runs) ++count[run.name];
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (count[runs[i].name] > 1) runs[i].name = lockstep::clean_text(files[i], 64);
}

int report(const lockstep::tools::ReportCommandLine& line) {
  std::vector<lockstep::tools::RunFile> runs;
  for (const std::string& file : line.files) runs.push_back(lockstep::tools::read_run_file(file));
  tell_apart(runs, line.files);
  const lockstep::tools::Comparison all = lockstep::tools::compare(std::move(runs));
  if (!line.html.empty())
    lockstep::write_file(line.html, lockstep::tools::report_page(all, line.ranks));
  lockstep::tools::print(lockstep::tools::report_text(all, line.ranks));
  return lockstep::tools::end_output(command, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = lockstep::tools::parse_report(argc, argv);
  return lockstep::tools::run_or_complain(command, [&] { return report(line); });
}
