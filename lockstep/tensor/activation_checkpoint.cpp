// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/kept_results.h"

namespace lockstep::checkpointing {
namespace {

using tensor::KeptResults;

using torch::autograd::AutogradContext;
using torch::autograd::Node;
using torch::autograd::variable_list;

std::vector<c10::Device> devices_of(const Tensors& tensors) {
  std::vector<c10::Device> devices{at::kCPU};
  for (const at::Tensor& tensor : tensors)
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  return devices;
}

Generators generators_of(const std::vector<c10::Device>& devices, const Generators& more) {
  Generators generators = more;
  for (const c10::Device& device : devices)
    generators.push_back(device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                                         : at::globalContext().defaultGenerator(device));
  return generators;
}

class Autocast {
 public:
  explicit Autocast(const std::vector<c10::Device>& devices)
      : caches_(at::autocast::is_autocast_cache_enabled()) {
    for (const c10::Device& device : devices)
      types_.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()),
                        at::autocast::get_autocast_dtype(device.type())});
  }

  void set() const {
    for (const Type& type : types_) {
      at::autocast::set_autocast_enabled(type.device, type.enabled);
      at::autocast::set_autocast_dtype(type.device, type.dtype);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }

  bool is_on() const {
    return std::any_of(types_.begin(), types_.end(), [](const Type& type) { return type.enabled; });
  }

 private:
  struct Type {
    c10::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Type> types_;
  bool caches_;
};

// Clears the cache of cast weights at both ends: it would refer to another graph or old
// weights.
class AutocastAsBefore {
 public:
  AutocastAsBefore(const Autocast& before, const std::vector<c10::Device>& devices)
      : now_(devices), clears_(before.is_on()) {
    before.set();
    at::autocast::increment_nesting();
    if (clears_) at::autocast::clear_cache();
  }
  ~AutocastAsBefore() {
    if (clears_) at::autocast::clear_cache();
    at::autocast::decrement_nesting();
    now_.set();
  }
  AutocastAsBefore(const AutocastAsBefore&) = delete;
  AutocastAsBefore& operator=(const AutocastAsBefore&) = delete;

 private:
  const Autocast now_;
  const bool clears_;
};

class GeneratorsAsBefore {
 public:
  GeneratorsAsBefore(const GeneratorStates& before, const Generators& generators)
      : now_(generators) {
    before.restore();
  }
  ~GeneratorsAsBefore() { now_.restore(); }
  GeneratorsAsBefore(const GeneratorsAsBefore&) = delete;
  GeneratorsAsBefore& operator=(const GeneratorsAsBefore&) = delete;

 private:
  const GeneratorStates now_;
};

// Keeps versions: other graphs may have saved the buffers.
class UnchangedBuffers {
 public:
  explicit UnchangedBuffers(const Tensors& buffers) : buffers_(buffers) {
    for (const at::Tensor& buffer : buffers_) values_.push_back(buffer.detach().clone());
  }
  ~UnchangedBuffers() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const at::Tensor data = buffers_[i].tensor_data();
      if (!at::equal(data, values_[i])) data.copy_(values_[i]);
    }
  }
  UnchangedBuffers(const UnchangedBuffers&) = delete;
  UnchangedBuffers& operator=(const UnchangedBuffers&) = delete;

 private:
  const Tensors& buffers_;
  Tensors values_;
};

// Hooks on parameters must run once, with the whole gradient. The engine would also call them for a
// block's part.
class WithoutHooks {
 public:
  explicit WithoutHooks(const variable_list& parameters) : parameters_(parameters) {
    for (const at::Tensor& parameter : parameters_) {
      hooks_.emplace_back();
      hooks_.back().swap(torch::autograd::impl::hooks(parameter));
    }
  }
  ~WithoutHooks() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      hooks_[i].swap(torch::autograd::impl::hooks(parameters_[i]));
  }
  WithoutHooks(const WithoutHooks&) = delete;
  WithoutHooks& operator=(const WithoutHooks&) = delete;

 private:
  const variable_list parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

Tensors as_leaves(at::TensorList inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().set_requires_grad(input.requires_grad()));
  return leaves;
}

// Errors: misuse for other leaves than `known`, whose gradients would be lost.
void require_known_leaves(const Tensors& outputs, const Tensors& known, const std::string& name) {
  std::vector<torch::autograd::Edge> ends;  // Keeps accumulators alive.
  std::unordered_set<Node*> seen{nullptr};
  for (const at::Tensor& tensor : known) {
    if (!tensor.requires_grad()) continue;
    ends.push_back(torch::autograd::impl::gradient_edge(tensor));
    seen.insert(ends.back().function.get());
  }
  std::vector<Node*> open;
  const auto add = [&](Node* node) {
    if (seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    if (output.requires_grad()) add(torch::autograd::impl::gradient_edge(output).function.get());
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    require(leaf == nullptr, [&] {
      return name + ": the block uses a tensor" + shape_text(leaf->variable) +
             " that requires a gradient, and is neither an input nor among the parameters";
    });
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

Tensors defined_of(const Tensors& values, std::vector<bool>& is_defined) {
  Tensors defined;
  is_defined.clear();
  for (const at::Tensor& value : values) {
    is_defined.push_back(value.defined());
    if (value.defined()) defined.push_back(value);
  }
  return defined;
}

Tensors with_undefined(at::TensorList defined, const std::vector<bool>& is_defined) {
  Tensors values;
  std::size_t next = 0;
  for (const bool is : is_defined) values.push_back(is ? defined[next++] : at::Tensor());
  return values;
}

struct Call : torch::CustomClassHolder {
  Call(Block its_block, const Tensors& variables)
      : block(std::move(its_block)),
        devices(devices_of(variables)),
        generators(generators_of(devices, block.generators)),
        states(generators),
        autocast(devices),
        kept_results(block.keep, generators, block.name) {}

  Tensors function(const Tensors& values) {
    std::vector<bool> is_defined;
    const Tensors all = block.function(with_undefined(values, input_is_defined));
    Tensors outputs = defined_of(all, is_defined);
    if (results.empty()) output_is_defined = is_defined;
    return outputs;
  }

  // For comparison with the second forward.
  struct Result {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
  };

  Block block;
  const std::vector<c10::Device> devices;
  const Generators generators;
  const GeneratorStates states;
  const Autocast autocast;
  KeptResults kept_results;

  std::vector<bool> input_is_defined, output_is_defined;
  std::size_t inputs = 0;  // The defined ones. Parameters follow.
  std::vector<Result> results;
};

using CallPtr = c10::intrusive_ptr<Call>;

Tensors first_forward(Call& call, at::TensorList variables, Tensors& kept) {
  const at::AutoGradMode with_graph(true);  // Operators choose kernels by it.
  Tensors known = as_leaves(variables.slice(0, call.inputs));
  const Tensors inputs = known;
  std::vector<std::int64_t> versions;
  for (const at::Tensor& input : inputs) versions.push_back(version_of(input));
  Tensors outputs = call.kept_results.record([&] { return call.function(inputs); }, kept);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    require(version_of(inputs[i]) == versions[i], [&] {
      return call.block.name + ": the block changes its input" + shape_text(inputs[i]) +
             " in place, and could not compute it again";
    });
  require(!outputs.empty(), [&] { return call.block.name + ": no tensor is returned"; });
  known.insert(known.end(), variables.begin() + static_cast<std::ptrdiff_t>(call.inputs),
               variables.end());
  require_known_leaves(outputs, known, call.block.name);
  return outputs;
}

Tensors second_forward(Call& call, const Tensors& inputs, const Tensors& kept) {
  const at::AutoGradMode with_graph(true);
  const AutocastAsBefore autocast(call.autocast, call.devices);
  const GeneratorsAsBefore generators(call.states, call.generators);
  Tensors outputs = call.kept_results.replay([&] { return call.function(inputs); }, kept);
  const std::string& name = call.block.name;
  require(outputs.size() == call.results.size(), [&] {
    return name + ": the second forward returns " + std::to_string(outputs.size()) +
           " tensors, the first one returned " + std::to_string(call.results.size());
  });
  for (std::size_t i = 0; i < outputs.size(); ++i)
    require(outputs[i].sizes() == call.results[i].sizes &&
                outputs[i].scalar_type() == call.results[i].type,
            [&] {
              return name + ": the second forward returns" + shape_text(outputs[i]) +
                     ", the first one returned" +
                     shape_text(call.results[i].type, call.results[i].sizes);
            });
  return outputs;
}

// Undefined if not requested.
variable_list gradients_of(const Tensors& outputs, const variable_list& gradients,
                           const variable_list& variables, const variable_list& parameters) {
  variable_list roots, root_gradients, wanted;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    root_gradients.push_back(gradients[i]);
  }
  for (const at::Tensor& variable : variables)
    if (variable.defined()) wanted.push_back(variable);
  if (roots.empty() || wanted.empty()) return variable_list(variables.size());
  const WithoutHooks without_hooks(parameters);
  const variable_list found = torch::autograd::grad(roots, wanted, root_gradients, std::nullopt,
                                                    /*create_graph=*/false, /*allow_unused=*/true);
  std::size_t next = 0;
  variable_list result;
  for (const at::Tensor& variable : variables)
    result.push_back(variable.defined() ? found[next++] : at::Tensor());
  return result;
}

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, const CallPtr& call,
                               at::TensorList variables) {
    Tensors kept;
    const Tensors outputs = first_forward(*call, variables, kept);
    variable_list saved(variables.begin(), variables.end());
    saved.insert(saved.end(), kept.begin(), kept.end());
    variable_list results, without_gradient;
    for (const at::Tensor& output : outputs) {
      call->results.push_back({output.sizes().vec(), output.scalar_type()});
      results.push_back(output.detach());
      if (!output.requires_grad()) without_gradient.push_back(results.back());
    }
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["variables"] = static_cast<std::int64_t>(variables.size());
    context->save_for_backward(std::move(saved));
    context->mark_non_differentiable(without_gradient);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    if (at::GradMode::is_enabled())
      throw Error(Fault::unsupported, call->block.name +
                                          ": a checkpoint's gradient has no gradient: backward() "
                                          "with create_graph");
    const variable_list saved = context->get_saved_variables();
    const auto variables = static_cast<std::size_t>(context->saved_data["variables"].toInt());
    const at::TensorList all(saved);
    const Tensors inputs = as_leaves(all.slice(0, call->inputs));
    variable_list parameters(saved.begin() + static_cast<std::ptrdiff_t>(call->inputs),
                             saved.begin() + static_cast<std::ptrdiff_t>(variables));
    variable_list asked = inputs;
    asked.insert(asked.end(), parameters.begin(), parameters.end());
    for (std::size_t i = 0; i < asked.size(); ++i)
      if (!asked[i].requires_grad() || !context->needs_input_grad(i)) asked[i] = at::Tensor();

    const UnchangedBuffers buffers(call->block.buffers);
    const Tensors outputs = second_forward(*call, inputs, all.slice(variables).vec());
    variable_list found = gradients_of(outputs, gradients, asked, parameters);
    found.insert(found.begin(), at::Tensor());
    return found;
  }
};

Tensors trained(const Tensors& parameters, const std::string& name) {
  Tensors result;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    require(!parameter.defined() || parameter.is_leaf(), [&] {
      return name + ": the parameter" + shape_text(parameter) +
             " is no leaf: pass it as an input of the block";
    });
    if (parameter.defined() && parameter.requires_grad() &&
        seen.insert(parameter.unsafeGetTensorImpl()).second)
      result.push_back(parameter);
  }
  return result;
}

}  // namespace

Block block_of(torch::nn::Module& module, std::function<bool(std::string_view)> keep,
               std::vector<at::Generator> generators, std::string name) {
  Block block{.function = {},
              .parameters = module.parameters(),
              .buffers = module.buffers(),
              .keep = std::move(keep),
              .generators = std::move(generators),
              .name = std::move(name)};
  if (block.name.empty()) block.name = "checkpoint of " + module.name();
  std::erase_if(block.buffers, [](const at::Tensor& buffer) { return !buffer.defined(); });
  return block;
}

Tensors run(Block block, const Tensors& inputs) {
  if (block.name.empty()) block.name = "activation_checkpoint";
  if (!at::GradMode::is_enabled()) return block.function(inputs);
  block.parameters = trained(block.parameters, block.name);
  std::vector<bool> input_is_defined;
  Tensors variables = defined_of(inputs, input_is_defined);
  const std::size_t defined = variables.size();
  variables.insert(variables.end(), block.parameters.begin(), block.parameters.end());
  if (std::none_of(variables.begin(), variables.end(),
                   [](const at::Tensor& variable) { return variable.requires_grad(); }))
    return block.function(inputs);

  const auto call = c10::make_intrusive<Call>(std::move(block), variables);
  call->inputs = defined;
  call->input_is_defined = std::move(input_is_defined);
  const variable_list outputs = Recompute::apply(call, at::TensorList(variables));
  return with_undefined(outputs, call->output_is_defined);
}

}  // namespace lockstep::checkpointing
