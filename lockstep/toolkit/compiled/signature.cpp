// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/compiled/signature.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/ScalarType.h>
#include <torch/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::compiled {
namespace {

using Json = nlohmann::json;

constexpr std::string_view format = "lockstep-compiled-1";

// read_signature() adds the file's name.
void demand(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

TensorForm tensor_form(const Json& json) {
  TensorForm form;
  const auto& types = c10::getStringToDtypeMap();
  const auto type = types.find(json.at("dtype").get<std::string>());
  demand(type != types.end(), "unknown element type");
  form.dtype = type->second;
  form.sizes = json.at("sizes").get<std::vector<std::int64_t>>();
  form.order = json.at("order").get<std::vector<std::size_t>>();
  std::vector<std::size_t> sorted = form.order;
  std::ranges::sort(sorted);
  demand(sorted.size() == form.sizes.size(), "sizes and order differ in length");
  for (std::size_t dim = 0; dim < sorted.size(); ++dim) {
    demand(sorted[dim] == dim, "the order is no order of the dimensions");
    demand(form.sizes[dim] >= 0, "a size is negative");
  }
  form.strides = form.strides_for(form.sizes);
  return form;
}

NamedForm named_form(const Json& json) {
  NamedForm named{json.at("names").get<std::vector<std::string>>(), tensor_form(json)};
  demand(!named.names.empty(), "a tensor has no name");
  return named;
}

ParameterForm parameter_form(const Json& json) {
  const auto role = json.at("role").get<std::string>();
  demand(role == "trained" || role == "frozen" || role == "unused", "unknown role");
  return {named_form(json), role == "trained"  ? Role::trained
                            : role == "frozen" ? Role::frozen
                                               : Role::unused};
}

InputForm input_form(const Json& json) {
  InputForm input{tensor_form(json), {}};
  if (const Json& dim = json.at("batch_dim"); !dim.is_null()) {
    input.batch_dim = dim.get<std::size_t>();
    demand(*input.batch_dim < input.form.sizes.size(), "the batch is no dimension");
  }
  return input;
}

GraphForm graph_form(const Json& json, std::size_t buffers) {
  GraphForm graph{.updated = json.at("updated").get<std::vector<std::size_t>>(),
                  .outputs = json.at("outputs").get<std::size_t>(),
                  .files = json.at("files").get<std::map<std::string, std::string>>()};
  demand(graph.outputs > 0, "a graph has no loss");
  graph.results = graph.updated.size() + graph.outputs;
  for (const std::size_t index : graph.updated) demand(index < buffers, "there is no such buffer");
  if (const Json& batch = json.at("batch"); !batch.is_null()) {
    graph.least_batch = batch.at(0).get<std::int64_t>();
    if (!batch.at(1).is_null()) graph.most_batch = batch.at(1).get<std::int64_t>();
  }
  return graph;
}

template <class Form>
std::vector<Form> all(const Json& list, Form (*read)(const Json&)) {
  std::vector<Form> forms;
  for (const Json& json : list) forms.push_back(read(json));
  return forms;
}

// Submodules and a tensor, separated by dots.
void demand_names(const Signature& signature) {
  std::set<std::string> found;
  const auto demand_new = [&](const NamedForm& tensor) {
    for (const std::string& name : tensor.names) {
      demand(("." + name + ".").find("..") == name.npos, "a part of a name is empty");
      demand(found.insert(name).second, "two tensors have one name");
    }
  };
  for (const ParameterForm& parameter : signature.parameters) demand_new(parameter);
  for (const NamedForm& buffer : signature.buffers) demand_new(buffer);
}

Signature signature_in(const Json& json) {
  Signature signature;
  signature.torch = json.at("torch").get<std::string>();
  signature.instruction_sets = json.at("instruction_sets").get<std::vector<std::string>>();
  signature.threads = json.at("threads").get<int>();
  signature.parameters = all(json.at("parameters"), &parameter_form);
  signature.buffers = all(json.at("buffers"), &named_form);
  signature.inputs = all(json.at("inputs"), &input_form);
  const Json& graphs = json.at("graphs");
  signature.train = graph_form(graphs.at("train"), signature.buffers.size());
  signature.eval = graph_form(graphs.at("eval"), signature.buffers.size());
  demand(signature.train.outputs == signature.eval.outputs, "the graphs' outputs differ");
  signature.train.results += static_cast<std::size_t>(std::ranges::count(
      signature.parameters, Role::trained, [](const ParameterForm& form) { return form.role; }));
  demand_names(signature);
  return signature;
}

std::string name_of(std::string_view file) { return std::string(file) + ": "; }

}  // namespace

std::vector<std::int64_t> TensorForm::strides_for(at::IntArrayRef other_sizes) const {
  std::vector<std::int64_t> result(order.size());
  std::int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    result[*dim] = stride;
    stride *= std::max<std::int64_t>(other_sizes[*dim], 1);
  }
  return result;
}

at::Tensor TensorForm::make() const {
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype));
}

Signature read_signature(std::string_view file, std::string_view json) {
  std::string found;
  try {
    const Json parsed = Json::parse(json);
    found = parsed.at("format").get<std::string>();
    if (found == format) return signature_in(parsed);
  } catch (const std::exception& error) {
    throw Error(Fault::corrupt, name_of(file) +
                                    "its description is not what lockstep_export "
                                    "writes: " +
                                    error.what());
  }
  throw Error(Fault::unsupported, name_of(file) + "its form is " + found +
                                      ", and this Lockstep reads " + std::string(format) +
                                      ": export it with the lockstep_export of this Lockstep");
}

void require_runnable(std::string_view file, const Signature& signature,
                      const std::vector<std::string>& cpu) {
  const std::string minor =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  if (!signature.torch.starts_with(minor))
    throw Error(Fault::unsupported, name_of(file) + "compiled with PyTorch " + signature.torch +
                                        ", but this program has LibTorch " TORCH_VERSION
                                        ": export it with a PyTorch of that version");
  std::string missing;
  for (const std::string& name : signature.instruction_sets)
    if (std::ranges::find(cpu, name) == cpu.end()) missing += " " + name;
  if (!missing.empty())
    throw Error(Fault::unsupported, name_of(file) + "compiled for a CPU with" + missing +
                                        ", which this one lacks: export it on such a host, or "
                                        "with --cpu x86-64-v3");
}

}  // namespace lockstep::compiled
