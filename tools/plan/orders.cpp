// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

constexpr int order_is_wrong = 1;

double share_of_stage(const PipelineOrder& order) {
  return static_cast<double>(order.ranks()) / order.stages();
}

SimulatedPipeline simulate_with(const PlanCommandLine& line, const PipelineOrder& order) {
  const double share = share_of_stage(order);
  PipelineStageCost cost{.forward = line.times[0] * share,
                         .backward_input = line.times[1] * share,
                         .backward_weight = line.times[2] * share};
  if (line.times.size() > 3) cost.send = line.times[3];
  return simulate(order, {cost});
}

std::string idle_text(const SimulatedPipeline& simulated) {
  return fmt::format("{:.1f} %", 100 * simulated.bubble);
}

std::string short_text(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string list_text(const std::vector<int>& values, double factor = 1) {
  std::string text;
  for (const int value : values) {
    if (!text.empty()) text += ' ';
    text += short_text(value * factor);
  }
  return text;
}

// A step's messages between ranks, both ways.
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

std::string compared(const PlanCommandLine& line, PipelineSchedule schedule) {
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

int compare(const PlanCommandLine& line) {
  std::string text = padded("SCHEDULE", 11) + padded("STAGES", 6) + padded("TIME", 8) +
                     padded("IDLE", 6) + padded("ACTIVATIONS", 11) + "MESSAGES\n";
  for (const std::string& name : pipeline_schedule_names())
    text += compared(line, parse_pipeline_schedule(name));
  text +=
      "\nSTAGES: of each rank, which share its part of the model. TIME: of a step; a rank's part "
      "of\n"
      "the model takes " +
      short_text(line.times[0]) + " for a forward and " + short_text(line.times[1]) + " + " +
      short_text(line.times[2]) +
      " for a backward. ACTIVATIONS: the most microbatches\n"
      "of which one rank keeps its part's activations. MESSAGES: of a step, both ways.\n";
  print(text);
  return end_output(plan_command, 0);
}

int show(const PlanCommandLine& line, const std::string& title, const PipelineOrder& order) {
  const SimulatedPipeline simulated = simulate_with(line, order);
  const PipelineSlots slots = slots_of(order);
  if (!line.svg.empty()) write_file(line.svg, draw_svg(simulated));
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
  print(text);
  return end_output(plan_command, 0);
}

int show_file(const PlanCommandLine& line) {
  PipelineOrder order;
  try {
    order = read_pipeline_order(line.order);
    check_pipeline_order(order);
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse) throw;
    std::fprintf(stderr, "%s: %s: %s\n", plan_command, line.order.c_str(),
                 bare_text(error).c_str());
    return order_is_wrong;
  }
  return show(line, clean_text(line.order), order);
}

}  // namespace

int plan_orders(const PlanCommandLine& line) {
  if (!line.order.empty()) return show_file(line);
  if (line.schedule.empty()) return compare(line);
  return show(line, line.schedule,
              make_pipeline_order(parse_pipeline_schedule(line.schedule), line.shape));
}

}  // namespace lockstep::tools
