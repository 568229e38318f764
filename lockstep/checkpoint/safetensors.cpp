// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <regex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// libstdc++'s regular expressions use stack for every byte of a name, and names come from files.
constexpr std::size_t longest_name = 1000;

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw Error(Fault::misuse,
                "NameTable: " + shown(pattern) +
                    " is not a valid regular expression: " + std::string(error.what()));
  }
}

constexpr std::size_t most_complaints = 5;  // Maximum in one message.

at::Tensor read(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry.type));
  file.read(entry, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

// The tensor of the file for a name in the module, and whether it is transposed.
struct NamedSource {
  const SafetensorsEntry* entry;
  bool transposed;
};
using Sources = std::map<std::string, NamedSource>;

Sources sources_in(const std::filesystem::path& file, const SafetensorsHeader& header,
                   const NameTable& names) {
  Sources sources;
  for (const SafetensorsEntry& entry : header.entries) {
    const auto target = names.find(entry.name);
    if (!target) continue;
    const auto [other, added] = sources.try_emplace(target->name, &entry, target->transposed);
    require(added, [&, &first = other->second] {
      return file.string() + ": the table of names maps both " + shown(first.entry->name) +
             " and " + shown(entry.name) + " to " + shown(target->name);
    });
  }
  return sources;
}

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  return std::string(c10::toString(type)) + " " + c10::str(shape);
}

// The name in the module, and the name in the file if it differs.
std::string both_names(const std::string& name, const NamedSource& source) {
  const std::string& in_file = source.entry->name;
  return shown(name) + (in_file == name ? "" : " (" + shown(in_file) + " in the file)");
}

// Returns the problem; empty if `source` fits `target`.
std::string complaint(const std::string& name, const NamedSource& source,
                      const at::Tensor& target) {
  const at::ScalarType type = scalar_type_of(source.entry->type);
  std::vector<std::int64_t> shape = source.entry->shape;
  if (source.transposed && shape.size() != 2)
    return both_names(name, source) + " cannot be transposed: it is " + describe(type, shape) +
           ", not a matrix";
  if (source.transposed) std::swap(shape[0], shape[1]);
  if (type == target.scalar_type() && target.sizes() == shape) return "";
  return both_names(name, source) + " is " + describe(type, shape) + " in the file" +
         (source.transposed ? " (transposed), " : ", ") +
         describe(target.scalar_type(), target.sizes()) + " in the module";
}

// Returns the reasons why the file's tensors cannot be copied into `targets`.
std::vector<std::string> complaints(const Sources& sources,
                                    const std::map<std::string, at::Tensor>& targets) {
  std::vector<std::string> found;
  for (const auto& [name, source] : sources) {
    const auto target = targets.find(name);
    std::string problem = target == targets.end()
                              ? both_names(name, source) + " is not in the module"
                              : complaint(name, source, target->second);
    if (!problem.empty()) found.push_back(std::move(problem));
  }
  // Python's save_model() writes a tensor with two names only once.
  const auto first = first_names({targets.begin(), targets.end()});
  std::set<std::string> loaded;
  for (const auto& [name, source] : sources)
    if (targets.contains(name)) loaded.insert(first.at(name));
  for (const auto& [name, tensor] : targets)
    if (!loaded.contains(first.at(name))) found.push_back(shown(name) + " is not in the file");
  return found;
}

// Returns the prefix that the file has before every name of the module; empty if there is no common
// one.
std::string surplus_prefix(const Sources& sources,
                           const std::map<std::string, at::Tensor>& targets) {
  if (targets.empty()) return {};
  const std::string& name = targets.begin()->first;
  for (const auto& [candidate, source] : sources) {
    if (!candidate.ends_with("." + name)) continue;
    const std::string prefix = candidate.substr(0, candidate.size() - name.size());
    if (std::ranges::all_of(
            targets, [&](const auto& target) { return sources.contains(prefix + target.first); }))
      return prefix;
  }
  return {};
}

// Suggests a remedy, for example for files of Python's DistributedDataParallel, which holds the
// module as its member `module`.
std::string cure_for_prefix(const std::string& prefix) {
  if (prefix.empty()) return {};
  return "; the names in the file begin with " + shown(prefix) +
         ": use load_weights(module, file, lockstep::without_prefix(" + shown(prefix) + "))";
}

// The parameters of which this rank holds a part.
Layouts parts_in(const torch::nn::Module& module) {
  Layouts parts = layouts_of(module);
  std::erase_if(parts, [](const auto& item) { return item.second.group.size() == 1; });
  return parts;
}

std::string cure_for_parts(const Layouts& parts) {
  if (parts.empty()) return {};
  return "; this rank has parts of " + std::to_string(parts.size()) + " parameters, such as " +
         parts.begin()->first + ": load the weights before parallelize_module()";
}

bool have_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// The file may have different values for two names of one tensor.
void require_equal_where_tied(const std::filesystem::path& file, const NamedTensors& loaded,
                              const std::map<std::string, at::Tensor>& targets) {
  const auto first = first_names({targets.begin(), targets.end()});
  std::map<std::string, const NamedTensors::value_type*> known;
  for (const auto& each : loaded) {
    const auto [other, is_new] = known.try_emplace(first.at(each.first), &each);
    if (is_new || have_same_bytes(other->second->second, each.second)) continue;
    throw Error(Fault::mismatch, file.string() + ": " + shown(other->second->first) + " and " +
                                     shown(each.first) +
                                     " are one tensor in the module, and have unequal elements "
                                     "in the file");
  }
}

void require_fit(const std::filesystem::path& file, const std::vector<std::string>& found,
                 const std::string& cure) {
  if (found.empty()) return;
  std::string message = file.string() + " does not fit the module: ";
  for (std::size_t i = 0; i < std::min(found.size(), most_complaints); ++i)
    message += (i == 0 ? "" : "; ") + found[i];
  if (found.size() > most_complaints)
    message += "; and " + std::to_string(found.size() - most_complaints) + " more";
  throw Error(Fault::misuse, message + cure);
}

}  // namespace

struct NameTable::Rule {
  std::regex pattern;
  NameRule rule;
};

NameTable::NameTable(std::initializer_list<NameRule> rules)
    : NameTable(std::vector<NameRule>(rules)) {}

NameTable::NameTable(const std::vector<NameRule>& rules) {
  std::vector<Rule> ready;
  for (const NameRule& rule : rules) ready.push_back({compiled(rule.pattern), rule});
  rules_ = std::make_shared<const std::vector<Rule>>(std::move(ready));
}

std::optional<NameTable::Target> NameTable::find(const std::string& name) const {
  std::smatch match;
  if (rules_ != nullptr && name.size() <= longest_name)
    for (const Rule& each : *rules_) {
      if (!std::regex_match(name, match, each.pattern)) continue;
      if (each.rule.ignore) return std::nullopt;
      return Target{match.format(each.rule.replacement), each.rule.transpose};
    }
  return Target{name, false};
}

std::string exact_pattern(std::string_view name) {
  constexpr std::string_view special = "^$\\.*+?()[]{}|";
  std::string pattern;
  for (const char c : name) {
    if (special.find(c) != special.npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

NameTable without_prefix(const std::string& prefix) {
  return NameTable{NameRule{.pattern = exact_pattern(prefix) + "(.+)", .replacement = "$1"}};
}

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter out(file, tensors, metadata);
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const std::string& name : out.order()) out.write(by_name.at(name));
  out.commit();
}

Safetensors load_safetensors(const std::filesystem::path& file) {
  const SafetensorsFile source(file);
  Safetensors loaded{.tensors = {}, .metadata = source.header().metadata};
  for (const SafetensorsEntry& entry : source.header().entries)
    loaded.tensors.emplace_back(entry.name, read(source, entry));
  return loaded;
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& file) {
  require_values(named_tensors(module), "save_weights");
  const Layouts parts = parts_in(module);
  require(parts.empty(), [&] {
    return "save_weights: this rank has parts of " + std::to_string(parts.size()) +
           " parameters, such as " + parts.begin()->first +
           ": save_safetensors(file, whole_tensors(module)) saves all of them";
  });
  save_safetensors(file, named_tensors(module), {{"format", "pt"}});
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                  const NameTable& names) {
  require_values(named_tensors(module), "load_weights");
  std::map<std::string, at::Tensor> targets;
  for (auto& [name, tensor] : named_tensors(module)) targets.emplace(name, tensor);
  const SafetensorsFile opened(file);
  const Sources sources = sources_in(file, opened.header(), names);
  require_fit(file, complaints(sources, targets),
              cure_for_prefix(surplus_prefix(sources, targets)) + cure_for_parts(parts_in(module)));

  // Reads everything before the first copy, so that a read error does not leave half a model.
  NamedTensors loaded;
  for (const auto& [name, source] : sources) {
    const at::Tensor tensor = read(opened, *source.entry);
    loaded.emplace_back(name, source.transposed ? tensor.t() : tensor);
  }
  require_equal_where_tied(file, loaded, targets);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : loaded) targets.at(name).copy_(tensor);
}

void save_weights(const torch::jit::Module& script, const std::filesystem::path& file) {
  save_weights(ScriptModule(script), file);
}

void load_weights(const torch::jit::Module& script, const std::filesystem::path& file,
                  const NameTable& names) {
  ScriptModule module(script);
  load_weights(module, file, names);
}

}  // namespace lockstep
