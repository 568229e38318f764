// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/stage_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/pipeline/cut_by_costs.h"
#include "lockstep/parallel/replicate/replicas.h"

namespace lockstep::parallel {
namespace {

void require_options(const PipelineOptions& options) {
  const auto refuse = [](bool is_wrong, const char* text) {
    require(!is_wrong, [&] { return std::string("Pipeline: ") + text; });
  };
  refuse(options.order && (options.schedule || options.microbatches || options.stages_per_rank),
         "an order has its own schedule, microbatches and stages_per_rank");
  refuse(!options.cut.empty() && !options.costs.empty(), "a cut leaves no choice to costs");
  refuse(options.fully_sharded && !options.data_parallel,
         "fully_sharded needs the option data_parallel, the ranks that share weights");
  refuse(options.data_parallel_options && !options.data_parallel,
         "data_parallel_options need the option data_parallel");
  refuse(options.data_parallel_options && options.fully_sharded,
         "data_parallel_options are those of replicas: fully_sharded has its own");
  const auto is_over_samples = [](const auto& each) {
    return each && each->mean == GradientMean::over_samples;
  };
  if (is_over_samples(options.data_parallel_options) || is_over_samples(options.fully_sharded))
    throw Error(Fault::unsupported,
                "Pipeline: GradientMean::over_samples: losses of microbatches are divided by their "
                "number. For a mean over samples, make each loss a sum times part.count / samples "
                "(docs/guide/pipeline.md, unequal numbers of tokens)");
  if (options.fully_sharded && options.fully_sharded->offload)
    throw Error(Fault::unsupported, "Pipeline: fully_sharded: offload: stages pass CPU tensors");
}

PipelineOrder order_of(const PipelineOptions& options, int ranks) {
  if (!options.order)
    return make_pipeline_order(options.schedule.value_or(PipelineSchedule::one_f_one_b),
                               {.ranks = ranks,
                                .microbatches = options.microbatches.value_or(4),
                                .stages_per_rank = options.stages_per_rank.value_or(0)});
  require(options.order->ranks() == ranks, [&] {
    return "Pipeline: the order is for " + std::to_string(options.order->ranks()) +
           " ranks, but the group has " + std::to_string(ranks);
  });
  check_pipeline_order(*options.order);
  return *options.order;
}

void require_cut(const PipelineOptions& options, int layers, int stages) {
  require(layers >= stages, [&] {
    return "Pipeline: " + std::to_string(stages) + " stages need as many layers, but there are " +
           std::to_string(layers);
  });
  require(options.costs.empty() || options.costs.size() == static_cast<std::size_t>(layers), [&] {
    return "Pipeline: there are " + std::to_string(options.costs.size()) + " costs for " +
           std::to_string(layers) + " layers";
  });
  for (const double cost : options.costs)
    require(std::isfinite(cost) && cost >= 0,
            [&] { return "Pipeline: " + std::to_string(cost) + " is not a cost of a layer"; });
  if (options.cut.empty()) return;
  require(static_cast<int>(options.cut.size()) == stages - 1, [&] {
    return "Pipeline: a cut into " + std::to_string(stages) + " stages has " +
           std::to_string(stages - 1) + " numbers, not " + std::to_string(options.cut.size());
  });
  int before = 0;
  for (const int first : options.cut) {
    require(before < first && first < layers, [&] {
      return "Pipeline: a cut increases from 1 to at most " + std::to_string(layers - 1) +
             ", but " + std::to_string(first) + " follows " + std::to_string(before);
    });
    before = first;
  }
}

// Errors: unsupported for a rank without trained parameters.
void require_trained_ranks(const StageChoice& choice) {
  std::vector<bool> is_trained(static_cast<std::size_t>(choice.order.ranks()));
  for (const auto& [name, tensor] : choice.whole.tensors)
    if (tensor.is_trained)
      is_trained[static_cast<std::size_t>(choice.rank_of(tensor.layer))] = true;
  for (std::size_t rank = 0; rank < is_trained.size(); ++rank)
    if (!is_trained[rank])
      throw Error(Fault::unsupported,
                  "Pipeline: fully_sharded: no layer of rank " + std::to_string(rank) +
                      " of the pipeline has a parameter that requires a gradient. Cut otherwise, "
                      "or use replicas: data_parallel alone");
}

// Collective: the largest costs decide.
std::vector<double> agreed(std::vector<double> costs, const std::vector<ProcessGroup>& alike) {
  for (const ProcessGroup& group : alike)
    group.all_reduce(buffer_of(costs), ReduceOp::max, {.label = "costs of layers"});
  return costs;
}

// The pipeline's, its replicas', and tensor parallel ranks'.
std::vector<ProcessGroup> groups_that_cut_alike(const LayerList& layers, const ProcessGroup& group,
                                                const PipelineOptions& options) {
  std::vector<ProcessGroup> groups{group};
  if (options.data_parallel) groups.push_back(*options.data_parallel);
  for (const LayerList::Cut& cut : layers.cuts()) groups.push_back(cut.group);
  return groups;
}

std::vector<int> cut_of(const PipelineOptions& options, const WholeModel& whole, int stages,
                        const std::vector<ProcessGroup>& alike) {
  if (options.cut.empty())
    return cut_by_costs(options.costs.empty() ? whole.elements : agreed(options.costs, alike),
                        stages);
  std::vector<int> first = options.cut;
  first.insert(first.begin(), 0);
  return first;
}

std::string lines_of(const LayerList& layers, const StageChoice& choice,
                     const PipelineOptions& options) {
  std::ostringstream text;
  text << "layers";
  for (std::size_t i = 0; i < layers.size(); ++i) text << ' ' << layers.name(i);
  text << '\n' << choice.whole.lines();
  for (const auto& [parameter, same_as] : layers.ties())
    text << parameter << " = " << same_as << '\n';
  for (const LayerList::Cut& cut : layers.cuts())
    for (const auto& [pattern, style] : cut.plan)
      text << pattern << " by " << name_of(style) << " over " << cut.group.size() << " ranks\n";
  text << "a cut";
  for (const int first : options.cut) text << ' ' << first;
  if (options.cut.empty()) text << " by " << (options.costs.empty() ? "elements" : "costs");
  text << '\n' << (options.fully_sharded ? "shared parameters" : "replicas") << " on ";
  text << (options.data_parallel ? options.data_parallel->size() : 1) << " ranks\n";
  text << to_string(choice.order);
  return text.str();
}

}  // namespace

int StageChoice::stage_of(std::size_t layer) const {
  const auto after = std::ranges::upper_bound(first_layers, static_cast<int>(layer));
  return static_cast<int>(after - first_layers.begin()) - 1;
}

int StageChoice::rank_of(std::size_t layer) const {
  return order.rank_of_stage[static_cast<std::size_t>(stage_of(layer))];
}

StageChoice choose_stages(const LayerList& layers, const ProcessGroup& group,
                          const PipelineOptions& options) {
  StageChoice choice;
  on_all_ranks(group, [&] {
    require_options(options);
    choice.order = order_of(options, group.size());
    choice.whole = survey(layers);
    require_cut(options, static_cast<int>(layers.size()), choice.order.stages());
  });
  const std::vector<ProcessGroup> alike = groups_that_cut_alike(layers, group, options);
  for (const ProcessGroup& each : alike)
    require_same_lines(lines_of(layers, choice, options), "the pipelines", each);
  choice.first_layers = cut_of(options, choice.whole, choice.order.stages(), alike);
  if (options.fully_sharded) require_trained_ranks(choice);
  return choice;
}

void on_all_ranks(const ProcessGroup& group, const std::function<void()>& act) {
  std::exception_ptr own;
  try {
    act();
  } catch (...) {
    own = std::current_exception();
  }
  std::vector<std::string> all;
  try {
    all = all_gather_bytes(own ? exception_text(own) : "", group, {.label = "Pipeline"});
  } catch (...) {
    if (!own) throw;  // Otherwise `own` is the cause.
  }
  if (own) std::rethrow_exception(own);
  const auto failed =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  const auto rank = static_cast<int>(failed - all.begin());
  throw Error(Fault::aborted, "rank " + std::to_string(job_rank(group, rank)) + ": " + *failed,
              {rank});
}

}  // namespace lockstep::parallel
