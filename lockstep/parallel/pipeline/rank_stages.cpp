// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/rank_stages.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/gradients/sink_choice.h"
#include "lockstep/parallel/pipeline/cut_by_costs.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

bool has(const torch::nn::Module& root, const std::string& pattern) {
  return std::ranges::any_of(root.named_modules("", /*include_self=*/false),
                             [&](const auto& each) { return matches(pattern, each.key()); });
}

int stage_of(std::size_t layer, const std::vector<int>& first_layers) {
  const auto after = std::ranges::upper_bound(first_layers, static_cast<int>(layer));
  return static_cast<int>(after - first_layers.begin()) - 1;
}

int rank_of(std::size_t layer, const PipelineOrder& order, const std::vector<int>& first_layers) {
  return order.rank_of_stage[static_cast<std::size_t>(stage_of(layer, first_layers))];
}

// Errors: for options that a pipeline cannot honour.
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

void require_cpu(const NamedTensors& tensors, const std::string& layer) {
  for (const auto& [name, tensor] : tensors)
    if (!tensor.is_cpu())
      throw Error(Fault::unsupported, "Pipeline: " + layer + "." + name + " is on " +
                                          tensor.device().str() + ": stages pass CPU tensors");
}

// Errors: misuse for a cut, or for costs, that do not fit the layers.
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

// Errors: unsupported for a rank without a parameter to train, whose stages no unit could have.
void require_trained_ranks(const WholeModel& whole, const PipelineOrder& order,
                           const std::vector<int>& first_layers) {
  std::vector<bool> is_trained(static_cast<std::size_t>(order.ranks()));
  for (const auto& [name, tensor] : whole.tensors)
    if (tensor.is_trained)
      is_trained[static_cast<std::size_t>(rank_of(tensor.layer, order, first_layers))] = true;
  for (std::size_t rank = 0; rank < is_trained.size(); ++rank)
    if (!is_trained[rank])
      throw Error(Fault::unsupported,
                  "Pipeline: fully_sharded: no layer of rank " + std::to_string(rank) +
                      " of the pipeline has a parameter that requires a gradient. Cut otherwise, "
                      "or use replicas: data_parallel alone");
}

// Collective over all ranks that must cut alike: the slowest one decides.
std::vector<double> agreed(std::vector<double> costs, const std::vector<ProcessGroup>& alike) {
  for (const ProcessGroup& group : alike)
    group.all_reduce(buffer_of(costs), ReduceOp::max, {.label = "costs of layers"});
  return costs;
}

// Those of the pipeline, of its replicas, and of tensor parallel ranks.
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

// All that ranks must have alike, in lines.
std::string lines_of(const LayerList& layers, const WholeModel& whole,
                     const PipelineOptions& options, const PipelineOrder& order) {
  std::ostringstream text;
  text << "layers";
  for (std::size_t i = 0; i < layers.size(); ++i) text << ' ' << layers.name(i);
  text << '\n' << whole.lines();
  for (const auto& [parameter, same_as] : layers.ties())
    text << parameter << " = " << same_as << '\n';
  for (const LayerList::Cut& cut : layers.cuts())
    for (const auto& [pattern, style] : cut.plan)
      text << pattern << " by " << name_of(style) << " over " << cut.group.size() << " ranks\n";
  text << "a cut";
  for (const int first : options.cut) text << ' ' << first;
  if (options.cut.empty()) text << " by " << (options.costs.empty() ? "elements" : "costs");
  text << '\n' << (options.fully_sharded ? "one copy" : "replicas") << " on ";
  text << (options.data_parallel ? options.data_parallel->size() : 1) << " ranks\n";
  text << to_string(order);
  return text.str();
}

// Collective: runs `act`. If it throws on some ranks, it does on all: on the others Error(aborted),
// with the text of the first such rank.
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

}  // namespace

RankStages::RankStages(const LayerList& layers, const ProcessGroup& group,
                       const PipelineOptions& options) {
  on_all_ranks(group, [&] {
    require_options(options);
    order_ = order_of(options, group.size());
    whole_ = survey(layers);
    require_cut(options, static_cast<int>(layers.size()), order_.stages());
  });
  const std::vector<ProcessGroup> alike = groups_that_cut_alike(layers, group, options);
  for (const ProcessGroup& each : alike)
    require_same_lines(lines_of(layers, whole_, options, order_), "the pipelines", each);
  first_layers_ = cut_of(options, whole_, order_.stages(), alike);
  if (options.fully_sharded) require_trained_ranks(whole_, order_, first_layers_);
  for (std::size_t i = 0; i < layers.size(); ++i) layer_names_.push_back(layers.name(i));
  for (const LayerList::Tie& tie : layers.ties()) tied_away_.insert(tie.parameter);

  on_all_ranks(group, [&] { make_layers(layers, group.rank()); });
  tie(layers, group);
  on_all_ranks(group, [&] { wrap(options); });
  ties_->follow_memory();
}

RankStages::~RankStages() = default;

void RankStages::make_layers(const LayerList& layers, int rank) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer layer = layers.make(i);  // On each rank, so that random numbers are those of one process.
    const NamedTensors tensors = named_tensors(*layer.module);
    require_values(tensors, "Pipeline: layer " + layers.name(i));
    require_cpu(tensors, layers.name(i));
    if (rank_of(i, order_, first_layers_) == rank)
      module_->add(stage_of(i, first_layers_), layers.name(i), std::move(layer));
  }
  for (const auto& [tp, plan, options] : layers.cuts()) {
    ParallelPlan mine;
    for (const auto& entry : plan)
      if (has(*module_, entry.first)) mine.push_back(entry);
    if (!mine.empty()) parallelize_module(*module_, tp, mine, options);
  }
}

void RankStages::tie(const LayerList& layers, const ProcessGroup& group) {
  require_equal_parts(layers, *module_, group);
  TiedWeights::Ranks ranks;
  for (const auto& [name, tensor] : whole_.tensors)
    ranks[name] = rank_of(tensor.layer, order_, first_layers_);
  ties_ = std::make_unique<TiedWeights>(layers.ties(), ranks, *module_, group);
}

void RankStages::wrap(const PipelineOptions& options) {
  is_fully_sharded_ = options.fully_sharded.has_value();
  forward_ = [this](int stage, const PassedValue& value) { return module_->forward(stage, value); };
  if (!options.data_parallel) return;
  const std::vector<at::Tensor> parameters = module_->parameters();
  // Without gradients there is nothing to average, but replicas are equal all the same.
  if (std::ranges::none_of(parameters, [](const auto& each) { return each.requires_grad(); }))
    return broadcast_replica(lockstep::named_tensors(*module_), *options.data_parallel);
  const auto take = [&](auto wrapped) {
    forward_ = [&it = *wrapped](int stage, const PassedValue& value) { return it(stage, value); };
    all_gradients_ = [&it = *wrapped] { return it(); };
    data_parallel_ = std::move(wrapped);
  };
  // A group of its own: give_up() ends it.
  const ProcessGroup replicas = options.data_parallel->split(0, options.data_parallel->rank());
  if (is_fully_sharded_)
    take(std::make_shared<FullyShardedDataParallel<StageModule>>(
        module_, replicas, of_this_rank(*options.fully_sharded)));
  else
    take(std::make_shared<DistributedDataParallel<StageModule>>(
        module_, replicas,
        options.data_parallel_options.value_or(DistributedDataParallelOptions())));
}

// Units of modules that other ranks have are theirs.
FullyShardedOptions RankStages::of_this_rank(FullyShardedOptions options) const {
  for (const std::string& unit : options.units)
    require(whole_.has_module(unit),
            [&] { return "Pipeline: no layer has a module '" + unit + "' for a unit"; });
  std::erase_if(options.units, [&](const std::string& unit) { return !has(*module_, unit); });
  return options;
}

void RankStages::give_up(const std::string& reason) {
  if (data_parallel_) data_parallel_->sinks_->group().abort(reason);
}

std::unique_ptr<DataParallelBase::NoSync> RankStages::no_sync() {
  if (!data_parallel_) return nullptr;
  return std::unique_ptr<DataParallelBase::NoSync>(
      new DataParallelBase::NoSync(data_parallel_->no_sync()));  // It cannot be moved.
}

void RankStages::average_gradients() {
  if (all_gradients_) all_gradients_().backward();
}

std::string RankStages::text_of(int stage) const {
  const std::size_t i = static_cast<std::size_t>(stage);
  const auto begin = static_cast<std::size_t>(first_layers_[i]);
  const auto end = i + 1 < first_layers_.size() ? static_cast<std::size_t>(first_layers_[i + 1])
                                                : layer_names_.size();
  std::string text = "stage " + std::to_string(stage) + " (";
  text += end - begin == 1 ? "layer " + layer_names_[begin]
                           : "layers " + layer_names_[begin] + " to " + layer_names_[end - 1];
  return text + ")";
}

}  // namespace lockstep::parallel
