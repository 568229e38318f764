// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/command_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/command_line.h"

namespace lockstep::tools {
namespace {

constexpr const char* about =
    "With PROGRAM: measures one layer of each kind of its model, and shows for every way to\n"
    "divide the model among ranks how much memory, traffic and time a step takes; the best first.\n"
    "Without: shows in which order the ranks of a pipeline work, how long they idle, and how many\n"
    "microbatches they keep at once: of all schedules, of one, or of an order in a file. Then\n"
    "nothing is started.\n";

constexpr const char* examples = R"(
Examples, layouts of a program (all that follows PROGRAM is passed on to it):
  lockstep plan -n 4 gpt --layers 8                          # four ranks on this host
  lockstep plan -n 4 --nnodes 2 --memory 64G --link 1G gpt   # four on each of two such hosts
  lockstep plan -n 4 --svg best.svg --json plan.json gpt
  lockstep plan -n 4 --profile gpt.profile gpt               # keep what was measured,
  lockstep plan -n 4 --nnodes 2 --profile gpt.profile        # and use it again

-n and --nnodes mean what they mean to lockstep run: -n 4 --nnodes 2 are 8 ranks.
PROGRAM calls lockstep::plan_if_asked() before init_process_group(). It is started once, with as
many ranks as a host has, and ends after the measurement. DP, TP, PP and CP are the sizes of the
mesh: replicas, parts of layers, stages, parts of sequences. FSDP: replicas share one copy of the
weights. MICRO: microbatches of a pipeline. RANK and HOST: memory at most. LINK: what the busiest
host sends in a step.

Examples, schedules of a pipeline:
  lockstep plan -n 4 --microbatches 8                        # compare all schedules
  lockstep plan -n 4 --microbatches 8 --schedule 1f1b        # draw one
  lockstep plan -n 4 --microbatches 8 --schedule interleaved --stages-per-rank 4
  lockstep plan -n 4 --microbatches 8 --schedule zbv --times 1,1.2,0.8,0.05 --svg zbv.svg
  lockstep plan -n 2 --microbatches 4 --schedule gpipe --write my.csv    # an order to edit
  lockstep plan --order my.csv                               # check it, and draw it

An order file has a line for each rank, and an action in each field: 2F5 is the forward of
microbatch 5 in stage 2, B its backward, I and W the gradients of its input and of its weights
apart. PyTorch writes and reads the same files.

Exit code: 0; 1 the order in the file cannot be run, no layout fits, or PROGRAM did not measure: the
message says why; 64 usage, 71 the system refused, 74 stdout cannot be written, 126 PROGRAM is not
executable, 127 PROGRAM is not found; else that of PROGRAM.
)";

constexpr const char* program_group = "Layouts of a program";
constexpr const char* order_group = "Schedules of a pipeline";

constexpr int most_ranks = 256;  // In total.

int columns_of_terminal() {
  winsize size{};
  constexpr int columns = 100;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : columns;
}

std::pair<double, std::string> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string rest(text.substr(static_cast<std::size_t>(end - text.data())));
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return {0, "?"};
  std::transform(rest.begin(), rest.end(), rest.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return {value, rest};
}

// 0 for a text that is no prefix.
double factor_of(const std::string& prefix, double base) {
  const std::string_view known = "kmgt";
  if (prefix.empty()) return 1;
  const auto found = known.find(prefix);
  return prefix.size() != 1 || found == known.npos ? 0
                                                   : std::pow(base, static_cast<double>(found) + 1);
}

std::string without_end(std::string text, const std::vector<std::string>& ends) {
  for (const std::string& end : ends)
    if (text.ends_with(end)) return text.substr(0, text.size() - end.size());
  return text;
}

class Formatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lockstep plan [OPTIONS] [PROGRAM [ARGUMENTS...]]\n";
  }
};

CLI::Validator that_parses(const std::function<void(const std::string&)>& parse) {
  return CLI::Validator(
      [parse](std::string& text) {
        try {
          parse(text);
          return std::string();
        } catch (const Error& error) {
          return bare_text(error);
        }
      },
      "");
}

// Rejects conflicting options, and sizes that would exhaust the memory.
void require_sense_of_orders(const PlanCommandLine& line) {
  constexpr int most = 200'000;
  const auto& [ranks, microbatches, stages] = line.shape;
  const double stages_of_all = static_cast<double>(ranks) * std::max(stages, 1);
  const bool has_shape = ranks != 0 || microbatches != 0 || stages != 0 || !line.schedule.empty();
  const bool has_file = !line.order.empty();
  if (has_file && has_shape)
    throw CLI::ValidationError(
        "--order comes without -n, --microbatches, --stages-per-rank and "
        "--schedule: the file already defines the schedule");
  if (!has_file && (ranks == 0 || microbatches == 0))
    throw CLI::ValidationError("-n and --microbatches are needed, or --order, or -n and PROGRAM");
  if (!has_file && line.schedule.empty() && !(line.svg + line.write).empty())
    throw CLI::ValidationError("--svg and --write need --schedule, --order or PROGRAM");
  if (stages_of_all * microbatches > most)
    throw CLI::ValidationError("stages times microbatches are more than " + std::to_string(most));
}

void require_sense_of_program(const PlanCommandLine& line) {
  if (line.shape.ranks == 0) throw CLI::ValidationError("-n is needed: the ranks on each host");
  if (line.shape.ranks * line.hosts > most_ranks)
    throw CLI::ValidationError("-n " + std::to_string(line.shape.ranks) + " on each of " +
                               std::to_string(line.hosts) + " hosts are more than " +
                               std::to_string(most_ranks) + " ranks");
}

void require_one_half(const CLI::App& app, const PlanCommandLine& line) {
  const char* const other = line.is_of_program() ? order_group : program_group;
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_group() == other)
      throw CLI::ValidationError(option->get_name() + (line.is_of_program()
                                                           ? " is not for layouts of a program"
                                                           : " needs PROGRAM"));
}

std::vector<std::string> program_in(const CLI::App& app) {
  std::vector<std::string> program = app.remaining();
  const bool separated = !program.empty() && program.front() == "--";
  if (separated) program.erase(program.begin());
  if (separated && program.empty()) throw CLI::ValidationError("PROGRAM is missing");
  if (!program.empty() && program.front().empty()) throw CLI::ValidationError(program_is_empty);
  if (!separated && !program.empty() && program.front().starts_with('-'))
    throw CLI::ValidationError(unknown_option(app, program.front()));
  return program;
}

class Declared {
 public:
  explicit Declared(PlanCommandLine& line) : line_(line), app(about, "lockstep plan") {
    app.footer(examples);
    app.formatter(std::make_shared<Formatter>());
    app.prefix_command();
    declare_common();
    declare_program();
    declare_orders();
  }

 private:
  void add_count(const char* names, int& value, int most, const char* text, const char* group) {
    app.add_option(names, value, text)
        ->type_name("N")
        ->check(CLI::Range(1, most).description(""))
        ->group(group);
  }

  void declare_common() {
    add_count("-n,--nproc-per-node", line_.shape.ranks, most_ranks,
              "Ranks on each host, as for lockstep run; without PROGRAM, ranks of the pipeline",
              "Options");
    app.add_option("--svg", line_.svg, "Write the picture of the pipeline as an SVG image")
        ->type_name("FILE");
    add_count("--columns", line_.columns, 10'000,
              "Width of the picture; by default the terminal's, or 100", "Options");
  }

  void declare_program() {
    add_count("--nnodes", line_.hosts, most_ranks, "Hosts, such as this one; 1 by default",
              program_group);
    app.add_option_function<std::string>(
           "--memory", [this](const std::string& text) { line_.host_bytes = parse_size(text); },
           "Memory of a host, such as 64G; by default this one's")
        ->type_name("SIZE")
        ->check(that_parses([](const std::string& text) { parse_size(text); }))
        ->group(program_group);
    app.add_option_function<std::string>(
           "--link", [this](const std::string& text) { line_.link_bandwidth = parse_link(text); },
           "Bits a second between hosts, such as 1G; by default this host's fastest interface's")
        ->type_name("RATE")
        ->check(that_parses([](const std::string& text) { parse_link(text); }))
        ->group(program_group);
    app.add_option("--profile", line_.profile,
                   "Write what was measured; without PROGRAM, read it instead of measuring")
        ->type_name("FILE")
        ->group(program_group);
    app.add_option("--json", line_.json, "Write all layouts as JSON")
        ->type_name("FILE")
        ->group(program_group);
    add_count("--top", line_.top, 1'000'000, "Lines of the table; 20 by default", program_group);
  }

  void declare_orders() {
    add_count("--microbatches", line_.shape.microbatches, 4096, "Microbatches of a step",
              order_group);
    add_count("--stages-per-rank", line_.shape.stages_per_rank, 64,
              "Stages of each rank, where the schedule leaves the choice", order_group);
    app.add_option("--schedule", line_.schedule, "Draw this one")
        ->type_name("NAME")
        ->check(CLI::IsMember(pipeline_schedule_names()))
        ->group(order_group);
    app.add_option("--order", line_.order, "Check and draw the order in this file")
        ->type_name("FILE")
        ->group(order_group);
    app.add_option("--times", line_.times,
                   "How long a rank's part of the model takes for a forward, its input's and its "
                   "weights' gradients, and a message between ranks; by default 1,1,1,0")
        ->option_text("F,I,W[,SEND]")
        ->delimiter(',')
        ->expected(3, 4)
        ->check(CLI::Range(0., 1e9).description(""))
        ->check(not_nan())
        ->group(order_group);
    app.add_option("--write", line_.write, "Write the order")
        ->type_name("FILE")
        ->group(order_group);
  }

  PlanCommandLine& line_;

 public:
  CLI::App app;
};

}  // namespace

std::vector<std::string> pipeline_schedule_names() {
  using enum PipelineSchedule;
  std::vector<std::string> names;
  for (const auto each : {gpipe, one_f_one_b, interleaved, looped_bfs, zero_bubble, zbv})
    names.emplace_back(name_of(each));
  return names;
}

double parse_size(std::string_view text) {
  const auto [value, unit] = number_in(text);
  const double factor = factor_of(without_end(unit, {"ib", "b"}), 1024);
  require(value > 0 && factor > 0,
          [&] { return "'" + clean_text(text) + "' is not a size such as 64G or 512M"; });
  return value * factor;
}

double parse_link(std::string_view text) {
  const auto [value, unit] = number_in(text);
  const double factor = factor_of(without_end(unit, {"bit/s", "bps", "b/s", "bit"}), 1000);
  require(value > 0 && factor > 0,
          [&] { return "'" + clean_text(text) + "' are no bits a second such as 1G or 100M"; });
  constexpr double bits = 8;
  return value * factor / bits;
}

PlanCommandLine parse_plan(int argc, char** argv) {
  PlanCommandLine line;
  Declared declared(line);
  try {
    declared.app.parse(argc, argv);
    line.program = program_in(declared.app);
    require_one_half(declared.app, line);
    line.is_of_program() ? require_sense_of_program(line) : require_sense_of_orders(line);
  } catch (const CLI::ParseError& error) {
    end_parsing(declared.app, error, argc, argv);
  }
  if (line.columns == 0) line.columns = columns_of_terminal();
  return line;
}

}  // namespace lockstep::tools
