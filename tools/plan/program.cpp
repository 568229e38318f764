// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/program.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "lockstep/base/text_file.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "tools/plan/layouts.h"
#include "tools/plan/measure_program.h"
#include "tools/plan/report.h"
#include "tools/plan/this_host.h"
#include "tools/standard_output.h"

namespace lockstep::tools {
namespace {

constexpr int nothing_fits = 1;

void say(const std::string& text) { std::fprintf(stderr, "%s: %s\n", plan_command, text.c_str()); }

Machine machine_of(const PlanCommandLine& line) {
  Machine machine{.ranks = line.shape.ranks * line.hosts, .hosts = line.hosts};
  machine.host_bytes = line.host_bytes ? *line.host_bytes : memory_of_this_host();
  constexpr double assumed = 10e9 / 8;
  const auto found = line.link_bandwidth ? line.link_bandwidth : link_of_this_host();
  machine.link_bandwidth = found.value_or(assumed);
  if (line.hosts > 1 && !found)
    say("no interface of this host reports its speed: 10 Gbit/s between hosts are assumed; --link");
  return machine;
}

std::variant<ModelProfile, NotMeasured> profile_of(const PlanCommandLine& line,
                                                   const Machine& machine) {
  const int ranks = machine.ranks_per_host();
  if (!line.program.empty()) {
    if (static_cast<unsigned>(ranks) > std::thread::hardware_concurrency())
      say(std::to_string(ranks) + " ranks share " +
          std::to_string(std::thread::hardware_concurrency()) +
          " processors: times are those of a host that is as full");
    return measure_program(line.program, ranks);
  }
  ModelProfile profile = read_profile(line.profile);
  if (profile.ranks == ranks) return profile;
  return NotMeasured{64, line.profile + " was measured with " + std::to_string(profile.ranks) +
                             " ranks a host, not " + std::to_string(ranks)};
}

void show_pipeline(const std::vector<PredictedLayout>& all, const ModelProfile& profile,
                   const Machine& machine, const PlanCommandLine& line) {
  const auto best = std::find_if(all.begin(), all.end(),
                                 [](const auto& each) { return each.schedule && each.fits; });
  if (best == all.end()) {
    if (!line.svg.empty()) say("no pipeline fits, so there is no picture for --svg");
    return;
  }
  const SimulatedPipeline simulated = simulate_layout(profile, machine, *best);
  if (!line.svg.empty()) write_file(line.svg, draw_svg(simulated));
  print("\nThe best pipeline, in milliseconds: " + std::string(name_of(*best->schedule)) +
        ", microbatches " + std::to_string(best->layout.microbatches) + "\n" +
        draw_text(simulated, line.columns));
}

}  // namespace

int plan_program(const PlanCommandLine& line) {
  const Machine machine = machine_of(line);
  const auto measured = profile_of(line, machine);
  if (const auto* const failed = std::get_if<NotMeasured>(&measured)) {
    say(failed->text);
    return failed->exit_code;
  }
  const auto& profile = std::get<ModelProfile>(measured);
  if (!line.profile.empty() && !line.program.empty()) write_file(line.profile, to_json(profile));
  const std::vector<PredictedLayout> all = predict_layouts(profile, machine);
  if (!line.json.empty()) write_file(line.json, json_of(all, profile, machine));
  print(title_of(profile, machine) + "\n\n" + table_of(all, line.top) + "\n" +
        advice(all, profile, machine));
  show_pipeline(all, profile, machine, line);
  return end_output(plan_command, !all.empty() && all.front().fits ? 0 : nothing_fits);
}

}  // namespace lockstep::tools
