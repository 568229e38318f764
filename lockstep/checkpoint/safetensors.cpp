// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

at::Tensor read(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry, file.name()));
  file.read(entry, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

}  // namespace

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

Safetensors load_safetensors(const std::filesystem::path& file,
                             const std::vector<std::string>& names) {
  const SafetensorsFile source(file);
  std::map<std::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : source.header().entries) entries.emplace(entry.name, &entry);
  Safetensors loaded{.tensors = {}, .metadata = source.header().metadata};
  for (const std::string& name : names) {
    const auto found = entries.find(name);
    require(found != entries.end(),
            [&] { return file.string() + " has no tensor " + shown(name); });
    loaded.tensors.emplace_back(name, read(source, *found->second));
  }
  return loaded;
}

}  // namespace lockstep
