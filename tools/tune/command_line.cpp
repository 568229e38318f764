// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/command_line.h"

#include <algorithm>
#include <memory>

#include "tools/command_line.h"

namespace lockstep::tools {
namespace {

constexpr const char* about =
    "Finds the number of ranks with which a program trains fastest on this host, and the command\n"
    "to use. It runs the program for some seconds in each sensible division of the cores: one\n"
    "rank with all threads, two ranks with half of them, one per NUMA node, per L3 cache and per\n"
    "core. The batch of all ranks together is the same in each.\n";

constexpr const char* examples = R"(
Examples:
  lockstep tune --global-batch 256 ./train --batch-size {batch}
  lockstep tune --global-batch 256 --try '--amp bf16' ./train --batch-size {batch}
  lockstep tune --global-batch 64 --save python3 train.py --batch-size {batch}
  lockstep run -n tuned python3 train.py --batch-size {batch}     # what --save has kept

In PROGRAM's arguments, {batch} is the batch of each rank, {ranks} the number of ranks, and
{threads} the threads of each rank, which OMP_NUM_THREADS also has.

PROGRAM must train for a minute or longer, and is ended with SIGKILL as soon as its speed is known:
let it write no checkpoints, or into a folder of their own. Steps are counted by
DistributedDataParallel and other parallel modules, by ProcessGroup::set_step(), and in Python by
the steps of optimizers, from init_process_group("lockstep") on.

SAMPLES/S is the mean of all runs of a division, with the slowest and the fastest fifth of a run.
Divisions close to the best are measured two or three times. MEMORY counts shared memory once for
each rank. WAIT is the share of the time in which ranks wait for others.

Exit code: 0; 1 no division could be measured; 64 usage, 71 the system refused, 74 a file or stdout
cannot be written, 126 PROGRAM is not executable, 127 PROGRAM is not found; 128 + the signal that
ended the command.
)";

// Adds PROGRAM, which is not an option.
class Formatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lockstep tune --global-batch N [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

std::vector<std::string> words_of(const std::string& text) { return CLI::detail::split_up(text); }

void require_sense(const CLI::App& app, const TuneCommandLine& line) {
  if (line.program.empty()) throw CLI::ValidationError("PROGRAM is missing");
  if (line.program.front().empty()) throw CLI::ValidationError(program_is_empty);
  if (line.program.front().starts_with('-'))
    throw CLI::ValidationError(unknown_option(app, line.program.front()));
  const bool has_batch = std::ranges::any_of(
      line.program, [](const std::string& word) { return word.find("{batch}") != word.npos; });
  if (!has_batch)
    throw CLI::ValidationError(
        "no argument of PROGRAM has {batch}, where it gets the batch of each rank");
}

}  // namespace

TuneCommandLine parse_tune(int argc, char** argv) {
  constexpr int most_samples = 1 << 30;
  TuneCommandLine line;
  CLI::App app(about, tune_command);
  app.footer(examples);
  app.formatter(std::make_shared<Formatter>());
  app.prefix_command();
  app.add_option("--global-batch", line.global_batch, "Samples of all ranks in a step")
      ->type_name("N")
      ->required()
      ->check(CLI::Range(1, most_samples).description(""));
  std::vector<std::string> variants;
  app.add_option("--try", variants,
                 "Also measure each division with these arguments appended; may be repeated")
      ->type_name("ARGUMENTS")
      ->expected(1)
      ->take_all();
  line.seconds = 8;
  app.add_option("--seconds", line.seconds, "Measured seconds of a run at most; 8 by default")
      ->type_name("SECONDS")
      ->check(CLI::Range(1., 3600.).description(""))
      ->check(not_nan());
  app.add_option("--json", line.json, "Also write all figures to this file")->type_name("FILE");
  app.add_option("--svg", line.svg, "Also draw them there")->type_name("FILE");
  app.add_flag("--save", line.save, "Keep the best division for lockstep run -n tuned");
  try {
    app.parse(argc, argv);
    line.program = app.remaining();
    if (!line.program.empty() && line.program.front() == "--")
      line.program.erase(line.program.begin());
    require_sense(app, line);
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error, argc, argv);
  }
  for (const std::string& text : variants) line.variants.push_back(words_of(text));
  return line;
}

}  // namespace lockstep::tools
