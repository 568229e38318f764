// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <set>
#include <span>
#include <utility>

#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/element_types.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

constexpr std::size_t most_complaints = 5;  // In one message.

at::Tensor read(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry.type));
  file.read(entry, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  return std::string(c10::toString(type)) + " " + c10::str(shape);
}

// What keeps the tensors of a file from being copied into `targets`.
std::vector<std::string> complaints(const SafetensorsHeader& header,
                                    const std::map<std::string, at::Tensor>& targets) {
  std::vector<std::string> found;
  std::set<std::string> present;
  for (const SafetensorsEntry& entry : header.entries) {
    present.insert(entry.name);
    const auto target = targets.find(entry.name);
    if (target == targets.end()) {
      found.push_back(shown(entry.name) + " is not in the module");
      continue;
    }
    const at::ScalarType type = scalar_type_of(entry.type);
    const at::Tensor& tensor = target->second;
    if (type != tensor.scalar_type() || tensor.sizes() != entry.shape)
      found.push_back(shown(entry.name) + " is " + describe(type, entry.shape) + " in the file, " +
                      describe(tensor.scalar_type(), tensor.sizes()) + " in the module");
  }
  for (const auto& [name, tensor] : targets)
    if (!present.contains(name)) found.push_back(shown(name) + " is not in the file");
  return found;
}

void require_fit(const std::filesystem::path& file, const std::vector<std::string>& found) {
  if (found.empty()) return;
  std::string message = file.string() + " does not fit the module: ";
  for (std::size_t i = 0; i < std::min(found.size(), most_complaints); ++i)
    message += (i == 0 ? "" : "; ") + found[i];
  if (found.size() > most_complaints)
    message += "; and " + std::to_string(found.size() - most_complaints) + " more";
  throw Error(Fault::misuse, message);
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    header.entries.push_back(entry_for(name, tensor));
    by_name.emplace(name, tensor);
  }
  lay_out(header);
  const std::string head = format_safetensors_header(header);
  const std::uint64_t data_size = header.entries.empty() ? 0 : header.entries.back().end;

  AtomicFile out(file, head.size() + data_size);
  out.write(std::as_bytes(std::span(head)));
  for (const SafetensorsEntry& entry : header.entries) {
    const at::Tensor values = by_name.at(entry.name).detach().cpu().resolve_neg().contiguous();
    out.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
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
  save_safetensors(file, named_tensors(module), {{"format", "pt"}});
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& file) {
  std::map<std::string, at::Tensor> targets;
  for (auto& [name, tensor] : named_tensors(module)) targets.emplace(name, tensor);
  const SafetensorsFile source(file);
  require_fit(file, complaints(source.header(), targets));

  // All is read before the first is copied, so that a bad disk does not leave half a model.
  NamedTensors loaded;
  for (const SafetensorsEntry& entry : source.header().entries)
    loaded.emplace_back(entry.name, read(source, entry));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : loaded) targets.at(name).copy_(tensor);
}

}  // namespace lockstep
