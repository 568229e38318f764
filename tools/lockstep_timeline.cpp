// `lockstep timeline`: merges the spans that ranks have recorded into one timeline.

// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/job/timeline/merge_timeline.h"
#include "tools/command_line.h"

namespace {

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

Exit code: 0; 64 usage, 71 the files cannot be read or written.
)";

struct CommandLine {
  std::vector<std::filesystem::path> folders;
  std::filesystem::path out;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, "lockstep timeline");
  app.footer(examples);
  app.add_option("folders", line.folders, "Folders with the files of ranks")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--out", line.out, "The timeline: JSON in Chrome's trace event format")
      ->type_name("FILE")
      ->required();
  lockstep::tools::parse(app, argc, argv);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return lockstep::tools::run_or_complain("lockstep timeline", [&] {
    const auto summary = lockstep::merge_timeline(line.folders, line.out);
    lockstep::tools::print(line.out.string() + ": " + describe(summary) + "\n");
    return lockstep::tools::end_output("lockstep timeline", 0);
  });
}
