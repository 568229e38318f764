// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/compiled/compiled_module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weight_files.h"
#include "lockstep/tensor/module_path.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/tensor/touched_tensors.h"
#include "lockstep/toolkit/compiled/package.h"
#include "lockstep/toolkit/compiled/signature.h"

namespace lockstep {
namespace {

using compiled::GraphForm;
using compiled::InputForm;
using compiled::NamedForm;
using compiled::ParameterForm;
using compiled::Role;
using compiled::TensorForm;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// --- The node in autograd's graph ----------------------------------------------------------------

struct StepResults {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // For the trained parameters.
};

class CompiledStep : public torch::autograd::Function<CompiledStep> {
 public:
  static at::Tensor forward(AutogradContext* context, const std::function<StepResults()>& compute,
                            at::TensorList) {
    StepResults results = compute();
    context->saved_data["gradients"] = std::move(results.gradients);
    return results.loss;
  }

  // Multiplies even by 1: DistributedDataParallel makes autograd store products in registered
  // memory, where averaging is faster.
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    require(
        !at::GradMode::is_enabled(),
        "CompiledModule: backward() with create_graph: compiled code has no second derivatives");
    c10::IValue& kept = context->saved_data["gradients"];
    require(!kept.isNone(),
            "CompiledModule: a second backward() through one forward(), whose gradients went to "
            "the first one: call forward() again, also in place of retain_graph");
    std::vector<at::Tensor> gradients = std::exchange(kept, c10::IValue()).toTensorVector();
    variable_list result{at::Tensor()};     // `compute` has none.
    for (at::Tensor& gradient : gradients)  // Each is released after its multiplication.
      result.push_back(std::exchange(gradient, at::Tensor()) * outputs[0]);
    return result;
  }
};

// --- Names ---------------------------------------------------------------------------------------

// By a tensor's first name in the file; ignores the others.
NameTable names_for(const std::vector<ParameterForm>& parameters,
                    const std::filesystem::path& weights) {
  const WeightFiles files(weights);
  std::set<std::string> saved;
  for (const WeightFiles::Tensor& tensor : files.tensors()) saved.insert(tensor.entry->name);
  std::vector<NameRule> rules;
  for (const ParameterForm& parameter : parameters) {
    bool is_found = saved.contains(parameter.names[0]);
    for (std::size_t i = 1; i < parameter.names.size(); ++i) {
      rules.push_back({.pattern = exact_pattern(parameter.names[i]),
                       .replacement = parameter.names[0],
                       .ignore = is_found});
      is_found = is_found || saved.contains(parameter.names[i]);
    }
  }
  return NameTable(rules);
}

// --- Inputs --------------------------------------------------------------------------------------

std::string shape_of(const InputForm& input) {
  std::string text = c10::toString(input.form.dtype);
  text += " [";
  for (std::size_t dim = 0; dim < input.form.sizes.size(); ++dim) {
    if (dim > 0) text += ", ";
    text += dim == input.batch_dim ? "batch" : std::to_string(input.form.sizes[dim]);
  }
  return text + "]";
}

std::string shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? c10::toString(tensor.scalar_type()) + (" " + c10::str(tensor.sizes()))
                          : "undefined";
}

std::string range_of(const GraphForm& graph) {
  const std::string least = std::to_string(graph.least_batch);
  if (graph.most_batch == std::numeric_limits<std::int64_t>::max())
    return "batches of " + least + " and more";
  return "batches of " + least + " to " + std::to_string(graph.most_batch);
}

bool fits(const at::Tensor& tensor, const InputForm& input) {
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      tensor.scalar_type() != input.form.dtype ||
      tensor.dim() != static_cast<std::int64_t>(input.form.sizes.size()))
    return false;
  for (std::size_t dim = 0; dim < input.form.sizes.size(); ++dim)
    if (dim != input.batch_dim && tensor.sizes()[dim] != input.form.sizes[dim]) return false;
  return true;
}

// Compiled code uses these strides, and ignores the tensor's own and pending operations.
at::Tensor laid_out(const at::Tensor& tensor, const TensorForm& form) {
  const auto strides = form.strides_for(tensor.sizes());
  if (has_strides(tensor, strides) && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

std::vector<at::Tensor> checked(const std::vector<at::Tensor>& inputs,
                                const std::vector<InputForm>& forms, const GraphForm& graph) {
  require(inputs.size() == forms.size(), [&] {
    return "CompiledModule: forward() takes " + std::to_string(forms.size()) + " inputs, not " +
           std::to_string(inputs.size());
  });
  std::vector<at::Tensor> result;
  std::optional<std::int64_t> batch;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const auto name = [i] { return "CompiledModule: input " + std::to_string(i); };
    require(fits(inputs[i], forms[i]), [&] {
      return name() + " is " + shape_of(inputs[i]) + ", but the code is for " + shape_of(forms[i]);
    });
    require(inputs[i].is_cpu(), [&] { return name() + " is not on the CPU"; });
    require(!inputs[i].requires_grad(),
            [&] { return name() + " requires a gradient, which the code does not compute"; });
    if (forms[i].batch_dim) {
      const std::int64_t samples = inputs[i].sizes()[*forms[i].batch_dim];
      require(samples == batch.value_or(samples), [&] {
        return name() + " has " + std::to_string(samples) + " samples, and an input before it " +
               std::to_string(*batch);
      });
      batch = samples;
    }
    result.push_back(laid_out(inputs[i], forms[i].form));
  }
  require(!batch || (graph.least_batch <= *batch && *batch <= graph.most_batch), [&] {
    return "CompiledModule: a batch of " + std::to_string(*batch) + ", but the code is for " +
           range_of(graph);
  });
  return result;
}

// --- Parameters and buffers ----------------------------------------------------------------------

void require_form(const at::Tensor& tensor, const NamedForm& named) {
  const TensorForm& form = named.form;
  require(tensor.is_cpu() && tensor.scalar_type() == form.dtype && tensor.sizes() == form.sizes &&
              has_strides(tensor, form.strides),
          [&] {
            return "CompiledModule: " + named.names[0] + " is " + shape_of(tensor) + " on the " +
                   tensor.device().str() + ", but the code is for " + shape_of({form, {}}) +
                   " in the layout of the export, in CPU memory";
          });
}

}  // namespace

CompiledModule::CompiledModule(std::unique_ptr<const compiled::LoadedPackage> package)
    : torch::nn::Module("CompiledModule"), package_(std::move(package)) {
  for (const ParameterForm& parameter : package_->signature.parameters) {
    const auto [module, name] = place_of(*this, parameter.names[0]);
    state_.push_back(
        module->register_parameter(name, parameter.form.make(), parameter.role != Role::frozen));
  }
  for (const NamedForm& buffer : package_->signature.buffers) {
    const auto [module, name] = place_of(*this, buffer.names[0]);
    state_.push_back(module->register_buffer(name, buffer.form.make()));
  }
}

CompiledModule::~CompiledModule() = default;

std::shared_ptr<CompiledModule> CompiledModule::load(const std::filesystem::path& package,
                                                     const std::filesystem::path& weights) {
  std::shared_ptr<CompiledModule> module(new CompiledModule(
      std::make_unique<const compiled::LoadedPackage>(compiled::load_package(package))));
  load_weights(*module, weights, names_for(module->package_->signature.parameters, weights));
  return module;
}

at::Tensor CompiledModule::run(const std::vector<at::Tensor>& inputs) {
  const compiled::Code& code = is_training() ? *package_->train : *package_->eval;
  const std::vector<at::Tensor> given = checked(inputs, package_->signature.inputs, code.form());
  require_state();
  if (is_training()) return train_on(given);
  const at::NoGradGuard no_grad;
  return call(code, given)[0];
}

at::Tensor CompiledModule::train_on(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> trained;
  for (std::size_t i = 0; i < package_->signature.parameters.size(); ++i)
    if (package_->signature.parameters[i].role == Role::trained) trained.push_back(state_[i]);
  const std::function<StepResults()> compute = [&] {
    std::vector<at::Tensor> results = call(*package_->train, inputs);
    return StepResults{results[0], {results.begin() + 1, results.end()}};
  };
  // Autograd ignores a vector's tensors, but not a TensorList's.
  return CompiledStep::apply(compute, at::TensorList(trained));
}

// Requires: autograd is off.
std::vector<at::Tensor> CompiledModule::call(const compiled::Code& code,
                                             const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> all = state_;
  all.insert(all.end(), inputs.begin(), inputs.end());
  const std::vector<at::Tensor> results = code.run(all);
  auto result = results.begin();
  for (const std::size_t index : code.form().updated)
    state_[package_->signature.parameters.size() + index].copy_(*result++);
  const auto others = result + static_cast<std::ptrdiff_t>(code.form().outputs);
  outputs_.assign(result + 1, others);
  std::vector<at::Tensor> kept{*result};
  kept.insert(kept.end(), others, results.end());
  return kept;
}

void CompiledModule::require_state() const {
  std::vector<at::Tensor> now = parameters();
  for (at::Tensor& buffer : buffers()) now.push_back(std::move(buffer));
  require(
      std::ranges::is_permutation(
          now, state_, [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }),
      "CompiledModule: its parameters and buffers are other tensors than after load(): the code "
      "would not use them");
  const std::vector<ParameterForm>& parameters = package_->signature.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].names[0];
    if (state_[i].key_set().has(watched_key))
      throw Error(Fault::unsupported,
                  "CompiledModule: FullyShardedDataParallel has " + name +
                      ", but the code uses all parameters at once: use share_parameters or ZeRO");
    require_form(state_[i], parameters[i]);
    require(parameters[i].role != Role::frozen || !state_[i].requires_grad(), [&] {
      return "CompiledModule: " + name +
             " requires a gradient, which the code does not compute: it was frozen when the model "
             "was exported";
    });
  }
  for (std::size_t i = parameters.size(); i < state_.size(); ++i)
    require_form(state_[i], package_->signature.buffers[i - parameters.size()]);
}

}  // namespace lockstep
