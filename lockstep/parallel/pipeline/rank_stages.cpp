// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/rank_stages.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/cut_by_costs.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/on_meta.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

// Hands the gradients of parameters on, out of backward().
class AllGradients : public torch::autograd::Node {
 public:
  AllGradients(std::vector<at::Tensor> parameters, torch::autograd::edge_list edges)
      : Node(std::move(edges)), parameters_(std::move(parameters)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    torch::autograd::variable_list gradients;
    for (at::Tensor& parameter : parameters_)
      gradients.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    return gradients;
  }

 private:
  std::vector<at::Tensor> parameters_;
};

void add_below(torch::nn::Module& root, const std::string& name,
               const std::shared_ptr<torch::nn::Module>& module) {
  const std::vector<std::string> levels = levels_of(name);
  torch::nn::Module* parent = &root;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    const auto children = parent->named_children();
    const auto* const found = children.find(levels[i]);
    parent = found
                 ? found->get()
                 : parent->register_module(levels[i], std::make_shared<torch::nn::Module>()).get();
  }
  parent->register_module(levels.back(), module);
}

void note(WholeModel& whole, std::size_t index, const std::string& name,
          const torch::nn::Module& module) {
  std::vector<std::string> modules;
  for (const auto& each : module.named_modules(name)) modules.push_back(each.key());
  double elements = 0;
  for (const auto& [key, tensor] : named_parameters(module)) {
    whole.tensors[name + "." + key] = {tensor.sizes().vec(), index, true};
    elements += static_cast<double>(tensor.numel());
  }
  for (const auto& [key, tensor] : named_buffers(module))
    whole.tensors[name + "." + key] = {tensor.sizes().vec(), index, false};
  whole.modules.push_back(std::move(modules));
  whole.elements.push_back(elements);
}

// On meta, unless its constructor needs values.
Layer make_to_look_at(const LayerList& layers, std::size_t layer) {
  try {
    return on_meta([&] { return layers.make(layer); });
  } catch (const std::exception&) {
    return layers.make(layer);
  }
}

// All layers, made and dropped. Random generators are as before.
WholeModel survey(const LayerList& layers) {
  const KeptGenerator generator;
  WholeModel whole;
  std::map<std::string, std::size_t> owners;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    note(whole, i, layers.name(i), *make_to_look_at(layers, i).module);
    for (const std::string& module : whole.modules.back()) {
      const auto [owner, is_new] = owners.emplace(module, i);
      require(is_new, [&] {
        return "LayerList: layers '" + layers.name(owner->second) + "' and '" + layers.name(i) +
               "' both have a module '" + module + "'";
      });
    }
  }
  return whole;
}

void require_ties(const LayerList& layers, const WholeModel& whole) {
  const auto find = [&](const std::string& name) -> const WholeModel::Tensor& {
    const auto found = whole.tensors.find(name);
    require(found != whole.tensors.end() && found->second.is_parameter,
            [&] { return "LayerList::tie: no layer has a parameter '" + name + "'"; });
    return found->second;
  };
  for (const auto& [parameter, same_as] : layers.ties()) {
    const auto& one = find(parameter);
    const auto& other = find(same_as);
    require(one.shape == other.shape, [&] {
      return "LayerList::tie: '" + parameter + "' has shape " +
             c10::str(at::IntArrayRef(one.shape)) + ", but '" + same_as + "' has " +
             c10::str(at::IntArrayRef(other.shape));
    });
  }
}

bool has_module(const WholeModel& whole, const std::string& pattern) {
  return std::ranges::any_of(whole.modules, [&](const auto& modules) {
    return std::ranges::any_of(modules,
                               [&](const std::string& name) { return matches(pattern, name); });
  });
}

bool has(const torch::nn::Module& root, const std::string& pattern) {
  return std::ranges::any_of(root.named_modules("", /*include_self=*/false),
                             [&](const auto& each) { return matches(pattern, each.key()); });
}

void require_plans(const LayerList& layers, const WholeModel& whole) {
  for (const LayerList::Cut& cut : layers.cuts())
    for (const auto& entry : cut.plan)
      require(has_module(whole, entry.first), [&] {
        return "LayerList::parallelize: no layer has a module '" + entry.first + "'";
      });
}

PipelineOrder order_of(const PipelineOptions& options, int ranks) {
  if (!options.order)
    return make_pipeline_order(options.schedule, {.ranks = ranks,
                                                  .microbatches = options.microbatches,
                                                  .stages_per_rank = options.stages_per_rank});
  require(options.order->ranks() == ranks, [&] {
    return "Pipeline: the order is for " + std::to_string(options.order->ranks()) +
           " ranks, but the group has " + std::to_string(ranks);
  });
  check_pipeline_order(*options.order);
  return *options.order;
}

std::vector<int> cut_of(const PipelineOptions& options, const WholeModel& whole, int stages) {
  const int layers = static_cast<int>(whole.elements.size());
  require(layers >= stages, [&] {
    return "Pipeline: " + std::to_string(stages) + " stages need as many layers, but there are " +
           std::to_string(layers);
  });
  if (options.cut.empty()) {
    require(options.costs.empty() || options.costs.size() == whole.elements.size(), [&] {
      return "Pipeline: there are " + std::to_string(options.costs.size()) + " costs for " +
             std::to_string(layers) + " layers";
    });
    return cut_by_costs(options.costs.empty() ? whole.elements : options.costs, stages);
  }
  std::vector<int> first = options.cut;
  first.insert(first.begin(), 0);
  require(static_cast<int>(first.size()) == stages, [&] {
    return "Pipeline: a cut into " + std::to_string(stages) + " stages has " +
           std::to_string(stages - 1) + " numbers, not " + std::to_string(options.cut.size());
  });
  for (std::size_t i = 1; i < first.size(); ++i)
    require(first[i - 1] < first[i] && first[i] < layers, [&] {
      return "Pipeline: a cut increases from 1 to at most " + std::to_string(layers - 1) +
             ", but its number " + std::to_string(i) + " is " + std::to_string(first[i]);
    });
  return first;
}

// Errors: mismatch if ranks have other layers, orders or cuts.
void require_equal(const LayerList& layers, const PipelineOrder& order,
                   const std::vector<int>& first_layers, const ProcessGroup& group) {
  std::string text = "layers";
  for (std::size_t i = 0; i < layers.size(); ++i) text += " " + layers.name(i);
  text += "\nfirst layers of stages";
  for (const int first : first_layers) text += " " + std::to_string(first);
  for (const auto& [parameter, same_as] : layers.ties())
    text += "\n" + parameter + " is " + same_as;
  text += "\n" + to_string(order);
  require_same_lines(text, "the pipelines", group);
}

}  // namespace

// --- StageModule --------------------------------------------------------------------------------

void StageModule::add(int stage, const std::string& name, Layer layer) {
  add_below(*this, name, layer.module);
  stages_[stage].push_back({name, std::move(layer)});
}

PassedValue StageModule::forward(int stage, const PassedValue& value) {
  PassedValue passed = value;
  for (const auto& [name, layer] : stages_.at(stage)) {
    try {
      passed = layer.forward(passed);
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse) throw;
      throw Error(Fault::misuse, "layer " + name + ": " + error.what());
    }
  }
  return passed;
}

bool StageModule::is_trained(int stage) const {
  return std::ranges::any_of(stages_.at(stage), [](const Named& named) {
    return std::ranges::any_of(named.layer.module->parameters(),
                               [](const at::Tensor& each) { return each.requires_grad(); });
  });
}

at::Tensor StageModule::forward() {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  auto edges = torch::autograd::collect_next_edges(trained);
  at::Tensor result = at::zeros({});
  torch::autograd::create_gradient_edge(
      result, c10::make_intrusive<AllGradients>(std::move(trained), std::move(edges)));
  return result;
}

// --- RankStages ---------------------------------------------------------------------------------

RankStages::RankStages(const LayerList& layers, const ProcessGroup& group,
                       const PipelineOptions& options)
    : order_(order_of(options, group.size())), whole_(survey(layers)) {
  for (std::size_t i = 0; i < layers.size(); ++i) layer_names_.push_back(layers.name(i));
  require_ties(layers, whole_);
  for (const LayerList::Tie& tie : layers.ties()) tied_away_.insert(tie.parameter);
  require_plans(layers, whole_);
  require(!options.fully_sharded || options.data_parallel,
          "Pipeline: fully_sharded needs the option data_parallel, the ranks that share weights");
  first_layers_ = cut_of(options, whole_, order_.stages());
  require_equal(layers, order_, first_layers_, group);
  make_layers(layers, group);
  wrap(options);
  ties_->follow_memory();
}

RankStages::~RankStages() = default;

void RankStages::make_layers(const LayerList& layers, const ProcessGroup& group) {
  TiedWeights::Ranks ranks;
  std::vector<int> stage_of(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto after = std::ranges::upper_bound(first_layers_, static_cast<int>(i));
    const int stage = static_cast<int>(after - first_layers_.begin()) - 1;
    stage_of[i] = order_.rank_of_stage[static_cast<std::size_t>(stage)];
    Layer layer = layers.make(i);  // On each rank, so that random numbers are those of one process.
    require_values(named_tensors(*layer.module), "Pipeline: layer " + layers.name(i));
    if (stage_of[i] == group.rank()) module_->add(stage, layers.name(i), std::move(layer));
  }
  for (const auto& [name, tensor] : whole_.tensors) ranks[name] = stage_of[tensor.layer];

  for (const auto& [tp, plan, options] : layers.cuts()) {
    ParallelPlan mine;
    for (const auto& entry : plan)
      if (has(*module_, entry.first)) mine.push_back(entry);
    if (!mine.empty()) parallelize_module(*module_, tp, mine, options);
  }
  ties_ = std::make_unique<TiedWeights>(layers.ties(), ranks, *module_, group);
}

void RankStages::wrap(const PipelineOptions& options) {
  is_fully_sharded_ = options.fully_sharded.has_value();
  const auto take = [&](auto wrapped) {
    forward_ = [&it = *wrapped](int stage, const PassedValue& value) { return it(stage, value); };
    all_gradients_ = [&it = *wrapped] { return it(); };
    data_parallel_ = std::move(wrapped);
  };
  if (is_fully_sharded_)
    take(std::make_shared<FullyShardedDataParallel<StageModule>>(
        module_, *options.data_parallel, of_this_rank(*options.fully_sharded)));
  else if (options.data_parallel)
    take(std::make_shared<DistributedDataParallel<StageModule>>(module_, *options.data_parallel,
                                                                options.data_parallel_options));
  else
    forward_ = [this](int stage, const PassedValue& value) {
      return module_->forward(stage, value);
    };
}

// Units of modules that other ranks have are theirs.
FullyShardedOptions RankStages::of_this_rank(FullyShardedOptions options) const {
  for (const std::string& unit : options.units)
    require(has_module(whole_, unit),
            [&] { return "Pipeline: no layer has a module '" + unit + "' for a unit"; });
  std::erase_if(options.units, [&](const std::string& unit) { return !has(*module_, unit); });
  return options;
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
