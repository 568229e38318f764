// `lockstep timeline`: merges the spans that ranks recorded into one timeline.

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/timeline/merge_timeline.h"
#include "tools/command_line.h"

namespace {

constexpr const char* command = "lockstep timeline";

constexpr const char* about =
    "Merges the spans that ranks have recorded into one timeline, for https://ui.perfetto.dev.\n"
    "`lockstep run --timeline` does so by itself. This is for other launchers, under which\n"
    "LOCKSTEP_TIMELINE_DIR names the folder, and for spans that a failed job has left on several\n"
    "hosts.\n";

constexpr const char* examples = R"(
Examples:
  LOCKSTEP_TIMELINE_DIR=$PWD/spans mpirun -n 4 ./my_program
  lockstep timeline spans --out t.json

  lockstep timeline host-a/spans host-b/spans --out t.json   # copied from two hosts

Of several jobs in a folder, the one that began last is merged. Files of the others are named on
stderr, as are those that cannot be read, such as one that a killed rank had only begun.

Exit code: 0; 64 usage, or no spans; 65 a file is damaged or of another version, and the timeline
is made of the others, if any; 71 a file cannot be read or written; 74 stdout cannot be written.
)";

struct CommandLine {
  std::vector<std::filesystem::path> folders;
  std::filesystem::path out;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, command);
  app.footer(examples);
  app.add_option("folder", line.folders, "Folders with the files of ranks")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--out", line.out, "The timeline: JSON in Chrome's trace event format")
      ->type_name("FILE")
      ->required();
  lockstep::tools::parse(app, argc, argv);
  return line;
}

void warn(const std::string& file) {
  std::fprintf(stderr, "%s: left out: %s\n", command, file.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return lockstep::tools::run_or_complain(command, [&] {
    const auto summary = lockstep::merge_timeline(line.folders, line.out);
    for (const std::string& file : summary.unreadable) warn(file);
    for (const std::string& file : summary.other_jobs) warn(file + ": it is of another job");
    lockstep::tools::print(line.out.string() + ": " + describe(summary) + "\n");
    return lockstep::tools::end_output(command,
                                       summary.unreadable.empty() ? 0 : lockstep::exit_corrupt);
  });
}
