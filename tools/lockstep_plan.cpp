// `lockstep plan`: compares, draws and checks the orders in which a pipeline's ranks work.

// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "tools/command_line.h"

namespace {

using namespace lockstep;

constexpr int order_is_wrong = 1;
constexpr const char* command = "lockstep plan";

constexpr const char* about =
    "Shows in which order the ranks of a pipeline work, how long they idle, and how many\n"
    "microbatches they keep at once: of all schedules, of one, or of an order in a file.\n"
    "Nothing is started.\n";

constexpr const char* examples = R"(
Examples:
  lockstep plan -n 4 --microbatches 8                        # compare all schedules
  lockstep plan -n 4 --microbatches 8 --schedule 1f1b        # draw one
  lockstep plan -n 4 --microbatches 8 --schedule interleaved --stages-per-rank 4
  lockstep plan -n 4 --microbatches 8 --schedule zbv --times 1,1.2,0.8,0.05 --svg zbv.svg
  lockstep plan -n 2 --microbatches 4 --schedule gpipe --write my.csv    # an order to edit
  lockstep plan --order my.csv                               # check it, and draw it

An order file has a line for each rank, and an action in each field: 2F5 is the forward of
microbatch 5 in stage 2, B its backward, I and W the gradients of its input and of its weights
apart. PyTorch writes and reads the same files.

Exit code: 0; 1 the order in the file cannot be run: the message says why; 64 usage, 71 the system
refused, 74 stdout cannot be written.
)";

struct CommandLine {
  std::string schedule;
  PipelineShape shape = {.ranks = 0, .microbatches = 0};
  std::vector<double> times = {1, 1, 1};
  std::string order;
  std::string svg;
  std::string write;
  int columns = 0;
};

std::vector<std::string> schedule_names() {
  using enum PipelineSchedule;
  std::vector<std::string> names;
  for (const auto each : {gpipe, one_f_one_b, interleaved, looped_bfs, zero_bubble, zbv})
    names.emplace_back(name_of(each));
  return names;
}

int columns_of_terminal() {
  winsize size{};
  constexpr int columns = 100;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : columns;
}

// Options that do not go together, and sizes that would take all memory.
void require_sense(const CommandLine& line) {
  constexpr int most = 200'000;
  const auto& [ranks, microbatches, stages] = line.shape;
  const double stages_of_all = static_cast<double>(ranks) * std::max(stages, 1);
  const bool has_shape = ranks != 0 || microbatches != 0 || stages != 0 || !line.schedule.empty();
  const bool has_file = !line.order.empty();
  if (has_file && has_shape)
    throw CLI::ValidationError(
        "--order comes without -n, --microbatches, --stages-per-rank and "
        "--schedule: the file says it all");
  if (!has_file && (ranks == 0 || microbatches == 0))
    throw CLI::ValidationError("-n and --microbatches are needed, or --order");
  if (!has_file && line.schedule.empty() && !(line.svg + line.write).empty())
    throw CLI::ValidationError("--svg and --write need --schedule or --order");
  if (stages_of_all * microbatches > most)
    throw CLI::ValidationError("stages times microbatches are more than " + std::to_string(most));
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, command);
  app.footer(examples);
  const auto add_count = [&](const char* names, int& value, int most, const char* text) {
    app.add_option(names, value, text)->type_name("N")->check(CLI::Range(1, most).description(""));
  };
  add_count("-n,--ranks", line.shape.ranks, 256, "Ranks of the pipeline");
  add_count("--microbatches", line.shape.microbatches, 4096, "Microbatches of a step");
  add_count("--stages-per-rank", line.shape.stages_per_rank, 64,
            "Stages of each rank, where the schedule leaves the choice");
  app.add_option("--schedule", line.schedule, "Draw this one")
      ->type_name("NAME")
      ->check(CLI::IsMember(schedule_names()));
  app.add_option("--order", line.order, "Check and draw the order in this file")->type_name("FILE");
  app.add_option("--times", line.times,
                 "How long a rank's part of the model takes for a forward, its input's and its "
                 "weights' gradients, and a message between ranks; by default 1,1,1,0")
      ->option_text("F,I,W[,SEND]")
      ->delimiter(',')
      ->expected(3, 4)
      ->check(CLI::Range(0., 1e9).description(""))
      ->check(lockstep::tools::not_nan());
  app.add_option("--svg", line.svg, "Write the picture as an SVG image")->type_name("FILE");
  app.add_option("--write", line.write, "Write the order")->type_name("FILE");
  add_count("--columns", line.columns, 10'000,
            "Width of the picture; by default the terminal's, or 100");
  try {
    app.parse(argc, argv);
    require_sense(line);
  } catch (const CLI::ParseError& error) {
    tools::end_parsing(app, error);
  }
  if (line.columns == 0) line.columns = columns_of_terminal();
  return line;
}

// The part of a rank's work and activations that a stage has.
double share_of_stage(const PipelineOrder& order) {
  return static_cast<double>(order.ranks()) / order.stages();
}

SimulatedPipeline simulate_with(const CommandLine& line, const PipelineOrder& order) {
  const double share = share_of_stage(order);
  PipelineStageCost cost{.forward = line.times[0] * share,
                         .backward_input = line.times[1] * share,
                         .backward_weight = line.times[2] * share};
  if (line.times.size() > 3) cost.send = line.times[3];
  return simulate(order, {cost});
}

std::string rounded(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string idle_text(const SimulatedPipeline& simulated) {
  return rounded(100 * simulated.bubble, 1) + " %";
}

// Without zeros at the end.
std::string short_text(double value) {
  std::string text = rounded(value, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string list_text(const std::vector<int>& values, double factor = 1) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : " ") + short_text(value * factor);
  return text;
}

// Messages of a step between ranks, both ways.
int messages_of(const PipelineOrder& order) {
  int boundaries = 0;
  for (std::size_t stage = 1; stage < order.rank_of_stage.size(); ++stage)
    boundaries += order.rank_of_stage[stage] != order.rank_of_stage[stage - 1] ? 1 : 0;
  return 2 * boundaries * order.microbatches;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

// A line of the table. Schedules that have a fixed number of stages have that.
std::string compared(const CommandLine& line, PipelineSchedule schedule) {
  using enum PipelineSchedule;
  PipelineShape shape = line.shape;
  if (schedule == gpipe || schedule == one_f_one_b || schedule == zbv) shape.stages_per_rank = 0;
  const std::string name = padded(std::string(name_of(schedule)), 11);
  try {
    const PipelineOrder order = make_pipeline_order(schedule, shape);
    const SimulatedPipeline simulated = simulate_with(line, order);
    const int most =
        *std::max_element(simulated.peak_microbatches.begin(), simulated.peak_microbatches.end());
    return name + padded(std::to_string(order.stages() / order.ranks()), 6) +
           padded(short_text(simulated.time), 8) + padded(idle_text(simulated), 6) +
           padded(short_text(most * share_of_stage(order)), 11) +
           std::to_string(messages_of(order)) + "\n";
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse) throw;
    return name + "-: " + bare_text(error) + "\n";
  }
}

int compare(const CommandLine& line) {
  std::string text = padded("SCHEDULE", 11) + padded("STAGES", 6) + padded("TIME", 8) +
                     padded("IDLE", 6) + padded("ACTIVATIONS", 11) + "MESSAGES\n";
  for (const std::string& name : schedule_names())
    text += compared(line, parse_pipeline_schedule(name));
  text +=
      "\nSTAGES: of each rank, which share its part of the model. TIME: of a step; a rank's part "
      "of\n"
      "the model takes " +
      short_text(line.times[0]) + " for a forward and " + short_text(line.times[1]) + " + " +
      short_text(line.times[2]) +
      " for a backward. ACTIVATIONS: the most microbatches\n"
      "of which one rank keeps its part's activations. MESSAGES: of a step, both ways.\n";
  tools::print(text);
  return tools::end_output(command, 0);
}

void write_svg(const SimulatedPipeline& simulated, const std::string& file) {
  std::ofstream out(file);
  out << draw_svg(simulated);
  out.close();
  if (!out) throw_errno(file);
}

int show(const CommandLine& line, const std::string& title, const PipelineOrder& order) {
  const SimulatedPipeline simulated = simulate_with(line, order);
  const PipelineSlots slots = slots_of(order);
  if (!line.svg.empty()) write_svg(simulated, line.svg);
  if (!line.write.empty()) write_pipeline_order(order, line.write);
  const std::string kept = list_text(simulated.peak_microbatches, share_of_stage(order));
  std::string text = title + ": " + std::to_string(order.ranks()) + " ranks, " +
                     std::to_string(order.stages()) + " stages, " +
                     std::to_string(order.microbatches) + " microbatches\n\n" +
                     draw_text(simulated, line.columns) + "\n";
  text += "idle         " + idle_text(simulated) + " of the ranks' time\n";
  text += "activations  " + kept + "  microbatches of which each rank keeps its part's at once\n";
  if (order.stages() > 1) {
    text +=
        "outputs      " + list_text(slots.outputs) + "  of each stage, in use at once at most\n";
    text += "gradients    " + list_text(slots.gradients) + "  of these outputs\n";
  }
  tools::print(text);
  return tools::end_output(command, 0);
}

int show_file(const CommandLine& line) {
  PipelineOrder order;
  try {
    order = read_pipeline_order(line.order);
    check_pipeline_order(order);
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse) throw;
    std::fprintf(stderr, "%s: %s: %s\n", command, line.order.c_str(), bare_text(error).c_str());
    return order_is_wrong;
  }
  return show(line, clean_text(line.order), order);
}

int run(const CommandLine& line) {
  if (!line.order.empty()) return show_file(line);
  if (line.schedule.empty()) return compare(line);
  return show(line, line.schedule,
              make_pipeline_order(parse_pipeline_schedule(line.schedule), line.shape));
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return tools::run_or_complain(command, [&] {
    try {
      return run(line);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s: %s\n", command, bare_text(error).c_str());
      return exit_code_of(error.fault());
    }
  });
}
