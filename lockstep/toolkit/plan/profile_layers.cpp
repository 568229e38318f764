// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/plan/profile_layers.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/pipeline/stage_module.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/plan/measure_layer.h"

namespace lockstep::plan {
namespace {

// Between layers.
struct Flow {
  Microbatch part;
  PassedValue value;
  int rows = 0;
};

std::int64_t rows_of(const PassedValue& batch) {
  require(!batch.tensors.empty() && batch.tensors.front().dim() > 0 &&
              batch.tensors.front().size(0) > 0,
          "plan_if_asked: the batch has no rows");
  return batch.tensors.front().size(0);
}

// From one row to the whole batch, about doubling.
std::vector<Flow> microbatches_of(const PassedValue& batch) {
  constexpr int smallest = 64;  // Fraction of the batch.
  const std::int64_t rows = rows_of(batch);
  std::vector<Flow> flows;
  for (int count = smallest; count > 0; count /= 2) {
    if (count > rows) continue;
    Flow flow{.part = {0, count}, .value = {{}, batch.structure}};
    for (const at::Tensor& tensor : batch.tensors)
      flow.value.tensors.push_back(flow.part.of(tensor));
    flow.rows = static_cast<int>(flow.value.tensors.front().size(0));
    if (flows.empty() || flows.back().rows != flow.rows) flows.push_back(std::move(flow));
  }
  return flows;
}

// Equal for layers of one kind.
std::string signature_of(const torch::nn::Module& module, const PassedValue& input, bool is_first) {
  std::ostringstream text;
  text << (is_first ? "first " : "") << input.structure;
  for (const at::Tensor& tensor : input.tensors) text << tensor.sizes() << tensor.dtype();
  for (const auto& each : module.named_modules()) {
    const torch::nn::Module& part = *each.value();
    text << each.key() << typeid(part).name() << part.is_training();
    part.pretty_print(text);
  }
  for (const auto& [name, tensor] : named_tensors(module))
    text << name << tensor.sizes() << tensor.dtype() << tensor.requires_grad();
  return text.str();
}

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string in_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}

class Profiler {
 public:
  Profiler(const LayerList& layers, const PassedValue& batch, const plan::CutLossOf& loss_of,
           const PlanOptions& options, const ProcessGroup& world)
      : layers_(layers), batch_(batch), loss_of_(loss_of), options_(options), world_(world) {
    require(layers.size() > 0, "plan_if_asked: there are no layers");
    profile_.ranks = world.size();
    profile_.rows = static_cast<int>(rows_of(batch));
    profile_.loss.name = "loss";
  }

  ModelProfile run() {
    for (int tp = 1; tp <= world_.size(); ++tp)
      if (world_.size() % tp == 0 && (tp == 1 || !options_.tensor_parallel.empty()))
        measure_parts(tp);
    add_ties();
    return std::move(profile_);
  }

 private:
  // Ends at the first refusal.
  void measure_parts(int tp) {
    const ProcessGroup group = world_.split(world_.rank() / tp, world_.rank());
    std::vector<Flow> flows = microbatches_of(batch_);
    std::map<int, std::vector<Flow>> after;  // By kind.
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      std::optional<pipeline::Layer> layer;
      if (tp == 1) layer = survey(i, flows.back().value);
      const int kind = profile_.kind_of_layer[i];
      if (!after.contains(kind)) {
        LayerPart part{.tp = tp};
        measure(part, layer ? *layer : make(i), i, group, flows);
        profile_.kinds[static_cast<std::size_t>(kind)].parts.push_back(part);
        if (!part.refusal.empty()) return;
        after[kind] = flows;
      }
      flows = after[kind];
    }
    profile_.loss.parts.push_back({.tp = tp});
    LayerPart& part = profile_.loss.parts.back();
    const auto loss_of = [&](const Flow& flow) {
      return [&](const PassedValue& output) {
        return PassedValue{{loss_of_(output, flow.part, group)}, "tensor"};
      };
    };
    const std::vector<Flow> outputs = flows;
    guarded(part, profile_.loss.name, [&] {
      measure_rows(part, {}, flows, true, loss_of);
      for (std::size_t i = 0; i < part.samples.size(); ++i)
        part.samples[i].held_input_bytes =
            held_input(loss_of(outputs[i]), outputs[i].value, part.samples[i].kept_bytes);
    });
  }

  // Equal weights on all ranks.
  pipeline::Layer make(std::size_t i) const {
    at::manual_seed(i);
    return layers_.make(i);
  }

  pipeline::Layer survey(std::size_t i, const PassedValue& input) {
    pipeline::Layer layer = make(i);
    std::string signature = signature_of(*layer.module, input, i == 0) + cuts_of(i, layer);
    if (options_.kind_of) signature += " " + options_.kind_of(layers_.name(i));
    const auto [found, is_new] = kinds_.emplace(signature, static_cast<int>(profile_.kinds.size()));
    if (is_new) profile_.kinds.push_back({.name = layers_.name(i)});
    profile_.layers.push_back(layers_.name(i));
    profile_.kind_of_layer.push_back(found->second);
    for (const auto& [name, parameter] : named_parameters(*layer.module)) {
      profile_.parameters += static_cast<double>(parameter.numel());
      owners_[layers_.name(i) + "." + name] = {static_cast<int>(i), parameter.nbytes(),
                                               parameter.numel()};
    }
    return layer;
  }

  std::string cuts_of(std::size_t i, const pipeline::Layer& layer) const {
    std::ostringstream text;
    const std::string& name = layers_.name(i);
    for (const auto& module : layer.module->named_modules(name))
      for (std::size_t entry = 0; entry < options_.tensor_parallel.size(); ++entry)
        if (matches(options_.tensor_parallel[entry].first, module.key()))
          text << ' ' << module.key().substr(name.size()) << " by " << entry;
    return text.str();
  }

  void measure(LayerPart& part, const pipeline::Layer& layer, std::size_t i,
               const ProcessGroup& group, std::vector<Flow>& flows) {
    StageModule root;
    root.add(0, layers_.name(i), layer);
    guarded(part, layers_.name(i), [&] {
      if (group.size() > 1) cut(root, group);
      measure_rows(part, root.parameters(), flows, i > 0, [&](const Flow&) {
        return [&](const PassedValue& value) { return root.forward(0, value); };
      });
      measure_optimizer(part, root.parameters(), options_);
    });
  }

  void cut(StageModule& root, const ProcessGroup& group) const {
    ParallelPlan plan;
    const auto modules = root.named_modules("", /*include_self=*/false);
    for (const auto& entry : options_.tensor_parallel)
      if (std::ranges::any_of(modules,
                              [&](const auto& each) { return matches(entry.first, each.key()); }))
        plan.push_back(entry);
    if (!plan.empty()) parallelize_module(root, group, plan);
  }

  // A whole layer must not refuse.
  template <class Act>
  void guarded(LayerPart& part, const std::string& name, const Act& act) const {
    if (part.tp == 1) return act();
    try {
      act();
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse) throw;
      part.refusal = in_one_line(bare_text(error));
    } catch (const c10::Error& error) {
      part.refusal = first_line_of(error.what_without_backtrace());
    }
    require_same_answer(part, name);
  }

  void require_same_answer(const LayerPart& part, const std::string& name) const {
    const std::vector<std::string> refusals = all_gather_bytes(part.refusal, world_);
    const auto refused =
        std::ranges::find_if(refusals, [](const auto& each) { return !each.empty(); });
    if (refused == refusals.end() || std::ranges::count(refusals, "") == 0) return;
    std::ostringstream text;
    text << "plan_if_asked: rank " << refused - refusals.begin() << " cannot cut " << name
         << " over " << part.tp << " ranks, but others can: " << *refused;
    throw Error(Fault::mismatch, text.str());
  }

  // Increases rows while time and memory allow. The next layer gets the remaining flows.
  template <class ForwardOf>
  void measure_rows(LayerPart& part, const std::vector<at::Tensor>& parameters,
                    std::vector<Flow>& flows, bool needs_gradient, const ForwardOf& forward_of) {
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (i > 0 && !can_go_on(part.samples.back(), flows[i].rows)) {
        flows.resize(i);
        break;
      }
      Flow& flow = flows[i];
      world_.barrier();
      MeasuredLayer measured =
          measure_layer(forward_of(flow), parameters, flow.value, needs_gradient);
      measured.sample.rows = flow.rows;
      part.samples.push_back(measured.sample);
      flow.value = std::move(measured.output);
    }
  }

  bool can_go_on(const LayerSample& last, int rows) const {
    constexpr double most_seconds = 1;  // Forward and backward.
    const double factor = static_cast<double>(rows) / last.rows;
    const double memory = static_cast<double>(available_memory()) / world_.size() / 2;
    const bool can = factor * (last.forward + last.backward) < most_seconds &&
                     factor * (last.peak_bytes + last.output_bytes) < memory;
    return std::ranges::all_of(all_gather_value(static_cast<int>(can), world_),
                               [](int each) { return each != 0; });
  }

  void add_ties() {
    for (const auto& [parameter, same_as] : layers_.ties()) {
      const auto one = owners_.find(parameter), other = owners_.find(same_as);
      for (const auto& [name, found] : {std::pair{parameter, one}, std::pair{same_as, other}})
        require(found != owners_.end(),
                [&] { return "LayerList::tie: no layer has a parameter '" + name + "'"; });
      require(one->second.bytes == other->second.bytes, [&] {
        return "LayerList::tie: '" + parameter + "' and '" + same_as + "' have other sizes";
      });
      profile_.ties.push_back({.layer = one->second.layer,
                               .same_as = other->second.layer,
                               .bytes = static_cast<double>(one->second.bytes)});
      profile_.parameters -= static_cast<double>(one->second.elements);
    }
  }

  struct Owner {
    int layer;
    std::size_t bytes;
    std::int64_t elements;
  };

  const LayerList& layers_;
  const PassedValue& batch_;
  const plan::CutLossOf& loss_of_;
  const PlanOptions& options_;
  const ProcessGroup world_;
  ModelProfile profile_;
  std::map<std::string, int> kinds_;     // By signature.
  std::map<std::string, Owner> owners_;  // By parameter.
};

}  // namespace

ModelProfile profile_layers(const LayerList& layers, const pipeline::PassedValue& batch,
                            const plan::CutLossOf& loss_of, const PlanOptions& options,
                            const ProcessGroup& world) {
  return Profiler(layers, batch, loss_of, options, world).run();
}

}  // namespace lockstep::plan
