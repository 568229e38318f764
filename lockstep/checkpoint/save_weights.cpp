// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/safetensors_index.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using checkpoint::CheckpointRanks;

constexpr std::string_view weights_part = "model";
constexpr std::string_view staging_name = ".weights.tmp";

// A tensor of the model, as a file will have it.
struct Output {
  std::string source;  // Name in the model.
  bool is_transposed = false;
  at::Tensor meta;  // Has the type and shape in the file.
};

// Those of one file, by their names in it.
using Shard = std::map<std::string, Output>;

// Returns a tensor of the model.
using Read = std::function<at::Tensor(const std::string& name)>;

at::Tensor meta_of(const at::Tensor& tensor, bool is_transposed,
                   const SaveWeightsOptions& options) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (is_transposed) std::swap(shape.at(0), shape.at(1));
  const bool converts = options.type && at::isFloatingType(tensor.scalar_type());
  return at::empty(shape,
                   at::dtype(converts ? *options.type : tensor.scalar_type()).device(at::kMeta));
}

// Fills files in the order of the tensors, as huggingface_hub does.
std::vector<Shard> divided(const NamedTensors& tensors, const SaveWeightsOptions& options) {
  std::vector<Shard> shards(1);
  std::map<std::string, std::string> sources;  // By name in the files.
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto target = options.names.find(name);
    if (!target) continue;
    require(!target->transposed || tensor.dim() == 2, [&, &matrix = name] {
      return "save_weights: " + matrix + " is no matrix to transpose";
    });
    const auto [other, is_new] = sources.emplace(target->name, name);
    require(is_new, [&, &first = other->second, &second = name] {
      return "save_weights: the table of names maps both " + first + " and " + second + " to " +
             target->name;
    });
    Output output{name, target->transposed, meta_of(tensor, target->transposed, options)};
    if (!shards.back().empty() && bytes + output.meta.nbytes() > options.max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += output.meta.nbytes();
    shards.back().emplace(target->name, std::move(output));
  }
  return shards;
}

std::string file_name(std::size_t shard, std::size_t shards) {
  if (shards == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
  return name.data();
}

// Weights of an earlier save_weights(), and what a killed one left. A single file is replaced at
// once when the new one is complete, so `kept` may stay.
void remove_earlier(const fs::path& folder, const std::string& kept) {
  static const std::regex pattern(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)");
  const std::string index = "model" + std::string(safetensors_index_ending);
  fs::remove(folder / index);  // First: what is left then is no longer a model.
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != kept && std::regex_match(name, pattern)) earlier.push_back(entry.path());
  }
  for (const fs::path& path : earlier) fs::remove(path);
  lockstep::remove_unfinished(folder, "model");
  sync_directory(folder);
}

void write(const fs::path& file, const Shard& shard, const Read& read) {
  NamedTensors metas;
  for (const auto& [name, output] : shard) metas.emplace_back(name, output.meta);
  SafetensorsWriter out(file, metas, {{"format", "pt"}});
  for (const std::string& name : out.order()) {
    const Output& output = shard.at(name);
    const at::Tensor tensor = read(output.source).detach();
    out.write((output.is_transposed ? tensor.t() : tensor).to(output.meta.scalar_type()));
  }
  out.commit();
}

void write_index(const fs::path& folder, const std::vector<Shard>& shards) {
  SafetensorsIndex index;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (const auto& [name, output] : shards[i]) {
      index.emplace(name, file_name(i, shards.size()));
      bytes += output.meta.nbytes();
    }
  const std::string json = format_safetensors_index(index, bytes);
  AtomicFile file(folder / ("model" + std::string(safetensors_index_ending)), json.size());
  file.write(std::as_bytes(std::span(json)));
  file.commit();
}

void write_folder(const fs::path& folder, const NamedTensors& tensors, const Read& read,
                  const SaveWeightsOptions& options) {
  const std::vector<Shard> shards = divided(tensors, options);
  try {
    fs::create_directories(folder);
    remove_earlier(folder, shards.size() == 1 ? file_name(0, 1) : "");
  } catch (const fs::filesystem_error& error) {
    throw Error(Fault::system, error.path1().string() + ": " + error.code().message());
  }
  for (std::size_t i = 0; i < shards.size(); ++i)
    write(folder / file_name(i, shards.size()), shards[i], read);
  if (shards.size() > 1) write_index(folder, shards);
}

void require_whole(const torch::nn::Module& module) {
  require_values(named_tensors(module), "save_weights");
  Layouts parts = layouts_of(module);
  std::erase_if(parts, [](const auto& item) { return item.second.group.size() == 1; });
  require(parts.empty(), [&] {
    return "save_weights: this rank has parts of " + std::to_string(parts.size()) +
           " parameters, such as " + parts.begin()->first +
           ": save_weights(module, folder, group) saves all of them";
  });
}

// Without further names of tensors that come under their first one.
NamedTensors under_first_names(NamedTensors tensors,
                               const std::map<std::string, std::string>& first_names) {
  std::erase_if(tensors, [&](const auto& each) {
    const auto first = first_names.find(each.first);
    return first != first_names.end() && first->second != each.first;
  });
  return tensors;
}

}  // namespace

void save_weights(const torch::nn::Module& module, const fs::path& file) {
  require_whole(module);
  save_safetensors(file, named_tensors(module), {{"format", "pt"}});
}

void save_weights(const torch::jit::Module& script, const fs::path& file) {
  save_weights(ScriptModule(script), file);
}

void save_weights(const torch::nn::Module& module, const fs::path& folder,
                  const SaveWeightsOptions& options) {
  require_whole(module);
  const NamedTensors tensors = named_tensors(module);
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  write_folder(
      folder, under_first_names(tensors, first_names(tensors)),
      [&](const std::string& name) { return by_name.at(name); }, options);
}

void save_weights(Stateful& state, const fs::path& folder, const ProcessGroup& group,
                  const SaveWeightsOptions& options) {
  const CheckpointRanks ranks(group.split(/*color=*/0), options.timeout);
  const fs::path staging = folder / staging_name;
  const auto remove_staging = [&] {
    std::error_code ignored;  // A folder that stays has no effect on the model beside it.
    fs::remove_all(staging, ignored);
  };
  ranks.rank_0("folder of weights", [&] {
    remove_staging();  // A killed save leaves it.
    return std::string();
  });
  {
    Checkpointer checkpoints(staging, group, {.timeout = options.timeout});
    checkpoints.save(1, {{std::string(weights_part), &state}});
  }
  ranks.rank_0("weights", [&] {
    const CheckpointReader reader(*latest_checkpoint(staging));
    NamedTensors tensors;
    for (const auto& [name, tensor] : reader.contents(std::string(weights_part)).tensors)
      tensors.emplace_back(name, tensor.data);
    std::map<std::string, std::string> firsts;
    if (auto* const weights = dynamic_cast<WeightState*>(&state))
      for (const auto& [name, target] : weights->targets()) firsts.emplace(name, target.first_name);
    write_folder(
        folder, under_first_names(std::move(tensors), firsts),
        [&](const std::string& name) { return reader.read(std::string(weights_part), name); },
        options);
    remove_staging();
    return std::string();
  });
}

void save_weights(torch::nn::Module& module, const fs::path& folder, const ProcessGroup& group,
                  const SaveWeightsOptions& options) {
  save_weights(*module_state(module), folder, group, options);
}

}  // namespace lockstep
