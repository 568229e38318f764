// `lockstep tune`: the fastest division of this host among the ranks of a program.

// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/run.h"
#include "tools/command_line.h"
#include "tools/tune/command_line.h"
#include "tools/tune/report.h"
#include "tools/tune/saved_choices.h"
#include "tools/tune/tune.h"

namespace {

using namespace lockstep;
using namespace lockstep::tools;

// On a terminal only; an empty text removes the line.
void show_progress(const std::string& text) {
  if (::isatty(STDERR_FILENO) != 1) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

int complain(const std::string& text, int exit_code) {
  std::fprintf(stderr, "%s: %s\n", tune_command, text.c_str());
  return exit_code;
}

// Fails before the measurement if the file is not writable. Its content stays.
void require_writable(const std::string& file) {
  if (!file.empty() && !std::ofstream(file, std::ios::app)) throw_errno(file);
}

int run(const TuneCommandLine& line) {
  const ProgramSearch search = find_program(line.program.front());
  if (search.path.empty()) return complain(search.problem, search.exit_code);
  require_writable(line.json);
  require_writable(line.svg);
  const Topology topology = read_topology(affinity_mask());
  const auto divisions =
      sensible_divisions(topology, cpu_quota(), line.global_batch, line.variants);
  const RunLimits limits{.measured = std::chrono::milliseconds(std::llround(line.seconds * 1000))};
  end_runs_at_signals();
  const Tuning tuning = tune(
      divisions, line.global_batch,
      [&](const Division& division, const std::function<void(const std::string&)>& show) {
        return measure_division(division, line.program, limits, show);
      },
      show_progress);
  show_progress("");
  const TunedProgram program{
      .program = line.program, .global_batch = line.global_batch, .cores = usable_cores()};
  print(table_of(tuning, program));
  if (!line.json.empty()) write_file(line.json, json_of(tuning, program));
  if (!line.svg.empty()) write_file(line.svg, svg_of(tuning, program));
  if (tuning.signal != 0) return 128 + tuning.signal;
  if (!tuning.best) return complain("no division could be measured", 1);
  if (line.save) {
    save_choice(line.program, tuning.divisions[*tuning.best].division);
    print("saved in " + file_of_choices() + ", for lockstep run -n tuned\n");
  }
  return end_output(tune_command, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const TuneCommandLine line = parse_tune(argc, argv);
  return run_or_complain(tune_command, [&] { return run(line); });
}
