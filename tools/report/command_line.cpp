// SPDX-License-Identifier: Apache-2.0
#include "tools/report/command_line.h"

#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "tools/command_line.h"

namespace lockstep::tools {
namespace {

constexpr const char* description =
    "Shows how runs of a training scale, where their steps spend the time, for which rank the\n"
    "others wait, and what would make them faster. It reads the files run.json of RunLog.\n";

constexpr const char* examples = R"(
Examples:
  lockstep report run.json                                  # one run
  lockstep report run1.json run4.json                       # 1 and 4 ranks: efficiency
  lockstep report run1.json run4.json --html report.html    # the same as a page with plots
  lockstep report run1.json run4.json --ranks 8,16          # what if there were 8 or 16 ranks?
  lockstep report before.json after.json                    # two runs on as many ranks

Runs are compared with the one on the fewest ranks: efficiency is the throughput of a rank there and
here. If two ranks are 70 % faster than one, the efficiency is 85 %. Samples are those that the
program told RunLog, or its option batch_size times the ranks; without either, each rank's part of a
step counts as one.

The page is one file, with nothing to load from elsewhere. A run that was killed, or still runs, is
read as far as it came.

Exit code: 0; 64 usage, 65 a file is no run.json, 71 a file cannot be read or written, 74 stdout
cannot be written.
)";

// CLI11 would skip an empty number.
std::vector<int> numbers_in(const std::string& text) {
  constexpr int most = 1'000'000;
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int number = 0;
    const auto [after, error] = std::from_chars(at, end, number);
    const bool ends = after == end || *after == ',';
    if (error != std::errc() || !ends || number < 1 || number > most)
      throw CLI::ValidationError("--ranks", "must be numbers from 1 to " + std::to_string(most) +
                                                ", as 8,16, not '" + text + "'");
    numbers.push_back(number);
    if (after == end) return numbers;
    at = after + 1;
  }
}

}  // namespace

ReportCommandLine parse_report(int argc, char** argv) {
  ReportCommandLine line;
  CLI::App app(description, "lockstep report");
  app.footer(examples);
  app.add_option("file", line.files, "The files run.json of one run or more")
      ->type_name("RUN.JSON")
      ->required();
  app.add_option("--html", line.html, "Write a page with plots")->type_name("FILE");
  app.add_option_function<std::string>(
         "--ranks", [&](const std::string& text) { line.ranks = numbers_in(text); },
         "Numbers of ranks to predict; by default 2 and 4 times")
      ->type_name("N,N...");
  parse(app, argc, argv);
  return line;
}

}  // namespace lockstep::tools
