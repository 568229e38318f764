// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_stateful.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/optimizer_options.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/tensor/differences.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

struct Parameter {
  std::string name;
  at::Tensor tensor;
  std::size_t group = 0;
  at::ScalarType type = at::kFloat;      // In which it is stepped.
  std::vector<std::int64_t> shape = {};  // The shape of the whole;
  Boxes boxes = {};                      // the tensor is these parts.
};

// A parameter, or the shard that this rank steps.
struct Part {
  Parameter whole;
  Shard shard;
  at::Tensor stepped;  // As passed to ShardedOptimizer::set_shards().
};

bool is_fragment(const Part& part) { return !part.stepped.is_same(part.whole.tensor); }

StateTensor describe(const Part& part, const at::Tensor& data) {
  StateTensor tensor = whole(data);
  const at::Tensor& parameter = part.whole.tensor;
  tensor.shape = part.whole.shape;
  tensor.boxes = part.whole.boxes;
  if (!is_fragment(part)) return tensor;
  if (!parameter.is_contiguous()) tensor.strides = parameter.strides().vec();
  tensor.begin = part.shard.begin;
  return tensor;
}

// Elements to read. Saved tensors count row by row, parts in memory order.
ElementRange needed_of(const Part& part) {
  if (is_fragment(part) && part.whole.tensor.is_contiguous())
    return {part.shard.begin, part.shard.end, {}, part.whole.boxes};
  return {0, part.whole.tensor.numel(), {}, part.whole.boxes};
}

at::Tensor cut(const Part& part, const at::Tensor& data, const ElementRange& range) {
  const at::Tensor& parameter = part.whole.tensor;
  at::Tensor here = data.to(parameter.device());
  const auto& [begin, end] = std::pair(part.shard.begin, part.shard.end);
  if (range.end - range.begin < parameter.numel()) {
    const at::Tensor mine = here.slice(0, begin - range.begin, end - range.begin);
    return mine.numel() == here.numel() ? mine : mine.clone();
  }
  here = here.reshape(parameter.sizes());
  optim::lay_out_as(parameter, here);
  return is_fragment(part) ? fragment_of(here, part.shard, parameter).clone() : here;
}

// Whether some options need no such tensor.
bool is_optional(std::string_view part) {
  return part == "max_exp_avg_sq" || part == "momentum_buffer" || part == "grad_avg";
}

std::string prefix_of_group(std::size_t group) {
  return "param_groups." + std::to_string(group) + '.';
}

StateValues options_in(const StateDict& saved, std::size_t group) {
  const std::string prefix = prefix_of_group(group);
  StateValues values;
  for (auto value = saved.values.lower_bound(prefix);
       value != saved.values.end() && value->first.starts_with(prefix); ++value)
    values.emplace(value->first.substr(prefix.size()), value->second);
  return values;
}

// Reports each unknown parameter once.
void find_unknown_names(const StateDict& saved, const std::set<std::string>& known,
                        Mismatches& mismatches) {
  constexpr std::string_view mark = ".param_group";
  std::set<std::string> unknown;
  for (const auto& [name, value] : saved.values)
    if (!known.contains(name) && name.ends_with(mark))
      unknown.insert(name.substr(0, name.size() - mark.size()));
  for (const std::string& name : unknown)
    mismatches.add("parameter " + name + " was saved and is not stepped here");
  const auto look_at = [&](const std::string& name) {
    if (!known.contains(name) && !unknown.contains(name.substr(0, name.rfind('.'))))
      mismatches.add(name + " was saved and is unknown here");
  };
  for (const auto& [name, tensor] : saved.tensors) look_at(name);
  for (const auto& [name, value] : saved.values) look_at(name);
}

}  // namespace

class OptimizerState final : public Stateful {
 public:
  OptimizerState(Optimizer& optimizer, const NamedTensors& parameters, Layouts layouts)
      : optimizer_(optimizer),
        sharded_(dynamic_cast<ShardedOptimizer*>(&optimizer)),
        stepping_(sharded_ != nullptr ? *sharded_->local_ : optimizer),
        named_(parameters),
        layouts_(std::move(layouts)),
        prototype_(make_param_state(stepping_)),
        prototype_parts_(parts_of(*prototype_)) {
    for (const auto& [name, tensor] : named_) names_.emplace(tensor.unsafeGetTensorImpl(), name);
    this->parameters();
  }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  std::vector<Parameter> parameters() const;
  std::vector<Part> parts() const;
  void require_kind(const StateDict& saved) const;
  void look_for(const Parameter& parameter, const StateDict& saved, std::set<std::string>& known,
                Mismatches& mismatches) const;
  void look_for_options(std::size_t group, const StateDict& saved, std::set<std::string>& known,
                        Mismatches& mismatches) const;
  // The constructor creates the state; step() relies on it.
  bool makes_state_itself() const { return prototype_parts_.optimizer == "Adagrad"; }

  StateRequest request(const StateDict& saved) const;
  std::unique_ptr<OptimizerParamState> loaded(const Part& part, const StateDict& state,
                                              const StateRequest& ranges) const;

  Optimizer& optimizer_;
  ShardedOptimizer* const sharded_;
  Optimizer& stepping_;       // Has the state.
  const NamedTensors named_;  // Kept alive: no address is reused.
  const Layouts layouts_;
  std::unordered_map<const void*, std::string> names_;
  const std::unique_ptr<OptimizerParamState> prototype_;
  const OptimizerStateParts prototype_parts_;
};

// In order. Collected per call: plain optimizers may get more groups.
std::vector<Parameter> OptimizerState::parameters() const {
  std::vector<Parameter> all;
  const auto& groups = optimizer_.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const at::Tensor& tensor : groups[group].params()) {
      const auto name = names_.find(tensor.unsafeGetTensorImpl());
      require(name != names_.end(), [&] {
        return "parameter " + std::to_string(all.size()) +
               " of the optimizer is not in the module: its state would have no name";
      });
      const at::ScalarType type = sharded_ != nullptr && all.size() < sharded_->types_.size()
                                      ? sharded_->types_[all.size()]
                                      : tensor.scalar_type();
      const auto layout = layouts_.find(name->second);
      if (layout == layouts_.end())
        all.push_back({name->second, tensor, group, type, tensor.sizes().vec()});
      else
        all.push_back(
            {name->second, tensor, group, type, layout->second.shape, layout->second.boxes});
    }
  return all;
}

std::vector<Part> OptimizerState::parts() const {
  const std::vector<Parameter> all = parameters();
  std::vector<Part> parts;
  if (sharded_ == nullptr) {
    for (std::size_t i = 0; i < all.size(); ++i)
      parts.push_back({all[i], {i, 0, all[i].tensor.numel(), 0}, all[i].tensor});
    return parts;
  }
  require(all.size() == sharded_->all_parameters_.size(),
          "param groups were added to a sharded optimizer after it was made");
  for (std::size_t i = 0; i < sharded_->stepped_.size(); ++i) {
    const Shard& shard = sharded_->own_shards_[i];
    parts.push_back({all[shard.parameter], shard, sharded_->stepped_[i]});
  }
  return parts;
}

// --- Describing ---------------------------------------------------------------------------------

StateDict OptimizerState::state_dict() {
  StateDict state;
  const auto& groups = optimizer_.param_groups();
  state.values.emplace("type", std::string(prototype_parts_.optimizer));
  state.values.emplace("param_groups", static_cast<std::int64_t>(groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (auto& [name, value] : state_values_of(groups[i].options()))
      state.values.emplace(prefix_of_group(i) + name, value);
  for (const Parameter& parameter : parameters())
    state.values.emplace(parameter.name + ".param_group",
                         static_cast<std::int64_t>(parameter.group));
  for (const Part& part : parts()) {
    const auto slot = stepping_.state().find(part.stepped.unsafeGetTensorImpl());
    if (slot == stepping_.state().end()) continue;
    const std::string prefix = part.whole.name + '.';
    const OptimizerStateParts members = parts_of(*slot->second);
    for (const auto& [name, integer] : members.integers)
      state.values.emplace(prefix + std::string(name), *integer);
    for (const auto& [name, tensor] : members.tensors) {
      if (!tensor->defined()) continue;
      const bool is_new =
          state.tensors.emplace(prefix + std::string(name), describe(part, *tensor)).second;
      check(is_new || !is_fragment(part), "a rank has two shards of one parameter");
    }
  }
  return state;
}

// --- What is wanted -----------------------------------------------------------------------------

// First: all other values of another optimizer would differ too.
void OptimizerState::require_kind(const StateDict& saved) const {
  const auto& type = value_of<std::string>(saved, "type");
  require(type == prototype_parts_.optimizer, [&] {
    return "the saved state is of " + type + ", this optimizer is " +
           std::string(prototype_parts_.optimizer);
  });
  const std::int64_t groups = value_of<std::int64_t>(saved, "param_groups");
  const std::size_t here = optimizer_.param_groups().size();
  require(groups == static_cast<std::int64_t>(here), [&] {
    return "the saved state is of an optimizer with " + std::to_string(groups) +
           " param groups, this one has " + std::to_string(here);
  });
}

void OptimizerState::look_for(const Parameter& parameter, const StateDict& saved,
                              std::set<std::string>& known, Mismatches& mismatches) const {
  const std::string prefix = parameter.name + '.';
  const auto name_of = [&](std::string_view part) { return prefix + std::string(part); };
  bool has_state = false;
  for (const auto& [part, integer] : prototype_parts_.integers)
    has_state |= saved.values.contains(*known.insert(name_of(part)).first);
  for (const auto& [part, tensor] : prototype_parts_.tensors)
    has_state |= saved.tensors.contains(*known.insert(name_of(part)).first);

  const auto group = saved.values.find(*known.insert(prefix + "param_group").first);
  if (group == saved.values.end())
    return mismatches.add("parameter " + parameter.name + " was not saved");
  if (group->second != StateValue(static_cast<std::int64_t>(parameter.group)))
    mismatches.add("parameter " + parameter.name + " is in param group " +
                   std::to_string(parameter.group) + " here and was saved in another");
  if (!has_state) {
    if (makes_state_itself() && parameter.tensor.numel() > 0)
      mismatches.add("no state was saved for parameter " + parameter.name);
    return;
  }
  for (const auto& [part, integer] : prototype_parts_.integers) {
    const auto value = saved.values.find(name_of(part));
    if (value == saved.values.end() || !std::holds_alternative<std::int64_t>(value->second))
      mismatches.add(name_of(part) + " was not saved, or not as an integer");
  }
  for (const auto& [part, tensor] : prototype_parts_.tensors)
    if (!is_optional(part) || saved.tensors.contains(name_of(part)))
      mismatches.find(saved, name_of(part), parameter.type, parameter.shape);
}

void OptimizerState::look_for_options(std::size_t group, const StateDict& saved,
                                      std::set<std::string>& known, Mismatches& mismatches) const {
  const StateValues values = options_in(saved, group);
  for (const auto& [name, value] : values) known.insert(prefix_of_group(group) + name);
  const auto& options = optimizer_.param_groups()[group].options();
  const std::vector<std::string> texts = mismatches_of(options, values);
  for (const std::string& text : texts)
    mismatches.add("param group " + std::to_string(group) + ": " + text);
  // Throws here if the values do not fit.
  if (texts.empty()) set_state_values(*options.clone(), values);
}

StateRequest OptimizerState::wanted(const StateDict& saved) {
  require_kind(saved);
  Mismatches mismatches;
  std::set<std::string> known{"type", "param_groups"};
  for (std::size_t i = 0; i < optimizer_.param_groups().size(); ++i)
    look_for_options(i, saved, known, mismatches);
  for (const Parameter& parameter : parameters()) look_for(parameter, saved, known, mismatches);
  find_unknown_names(saved, known, mismatches);
  mismatches.require_none("the saved state is not that of this optimizer");
  return request(saved);
}

// For a parameter's several shards, requests the range that spans them.
StateRequest OptimizerState::request(const StateDict& saved) const {
  StateRequest ranges;
  for (const Part& part : parts())
    for (const auto& [name, tensor] : prototype_parts_.tensors) {
      const std::string full_name = part.whole.name + '.' + std::string(name);
      if (!saved.tensors.contains(full_name)) continue;
      const ElementRange needed = needed_of(part);
      auto& range = ranges.emplace(full_name, needed).first->second;
      range.begin = std::min(range.begin, needed.begin);
      range.end = std::max(range.end, needed.end);
    }
  return ranges;
}

// --- Loading ------------------------------------------------------------------------------------

std::unique_ptr<OptimizerParamState> OptimizerState::loaded(const Part& part,
                                                            const StateDict& state,
                                                            const StateRequest& ranges) const {
  auto result = make_param_state(stepping_);
  const OptimizerStateParts members = parts_of(*result);
  bool has_state = false;
  for (const auto& [name, integer] : members.integers) {
    const std::string full_name = part.whole.name + '.' + std::string(name);
    if (!state.values.contains(full_name)) continue;
    *integer = value_of<std::int64_t>(state, full_name);
    has_state = true;
  }
  for (const auto& [name, tensor] : members.tensors) {
    const auto saved = state.tensors.find(part.whole.name + '.' + std::string(name));
    if (saved == state.tensors.end()) continue;
    *tensor = cut(part, saved->second.data, ranges.at(saved->first));
    has_state = true;
  }
  return has_state ? std::move(result) : nullptr;
}

void OptimizerState::load_state_dict(StateDict state) {
  const at::NoGradGuard no_grad;
  auto& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i)
    set_state_values(groups[i].options(), options_in(state, i));
  const StateRequest ranges = request(state);
  for (const Part& part : parts()) {
    auto of_part = loaded(part, state, ranges);
    void* const key = part.stepped.unsafeGetTensorImpl();
    if (of_part)
      stepping_.state()[key] = std::move(of_part);
    else if (part.stepped.numel() > 0 || !makes_state_itself())
      stepping_.state().erase(key);
  }
  if (sharded_ != nullptr) sharded_->whole_.reset();
}

std::unique_ptr<Stateful> state_of(Optimizer& optimizer, const NamedTensors& parameters,
                                   const Layouts& layouts) {
  return std::make_unique<OptimizerState>(optimizer, parameters, layouts);
}

}  // namespace lockstep
