// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>
#include <unistd.h>

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
#include "lockstep/checkpoint/save_plan.h"
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

struct Output {
  std::string source;  // Name in the model.
  bool is_transposed = false;
  at::Tensor meta;  // Type and shape in the file.
};

// By name in the file.
using Shard = std::map<std::string, Output>;

using Read = std::function<at::Tensor(const std::string& name)>;

at::Tensor meta_of(const at::Tensor& tensor, bool is_transposed,
                   const SaveWeightsOptions& options) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (is_transposed) std::swap(shape.at(0), shape.at(1));
  const bool converts = options.type && at::isFloatingType(tensor.scalar_type());
  return at::empty(shape,
                   at::dtype(converts ? *options.type : tensor.scalar_type()).device(at::kMeta));
}

// Divides the tensors into files in order, as huggingface_hub does.
// Errors: misuse if `options` maps names to one; unsupported for types that safetensors lacks.
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
    entry_for(target->name, output.meta);  // May throw.
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

// Removes weights of an earlier, perhaps killed, save_weights(). `kept` may stay: a single file is
// replaced atomically.
void remove_earlier(const fs::path& folder, const std::string& kept) {
  static const std::regex pattern(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)");
  const std::string index = "model" + std::string(safetensors_index_ending);
  fs::remove(folder / index);  // First: the other files are then no model.
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

// Without keep(), the destructor removes new, empty folders.
class NewFolders {
 public:
  explicit NewFolders(const fs::path& folder) {
    std::error_code error;
    for (fs::path each = folder; !each.empty() && !fs::exists(each, error) && !error;
         each = each.parent_path())
      missing_.push_back(each);
  }
  ~NewFolders() {
    for (const fs::path& each : missing_) ::rmdir(each.c_str());  // Fails if there are files in it.
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  void keep() { missing_.clear(); }

 private:
  std::vector<fs::path> missing_;  // Innermost first.
};

// After an Error, removes its files and new folders.
void write_folder(const fs::path& folder, const std::vector<Shard>& shards, const Read& read) {
  NewFolders created(folder);
  try {
    fs::create_directories(folder);
    remove_earlier(folder, shards.size() == 1 ? file_name(0, 1) : "");
  } catch (const fs::filesystem_error& error) {
    throw Error(Fault::system, error.path1().string() + ": " + error.code().message());
  }
  std::size_t written = 0;
  try {
    for (; written < shards.size(); ++written)
      write(folder / file_name(written, shards.size()), shards[written], read);
    if (shards.size() > 1) write_index(folder, shards);
  } catch (...) {
    std::error_code ignored;
    for (std::size_t i = 0; i < written; ++i)
      fs::remove(folder / file_name(i, shards.size()), ignored);
    throw;
  }
  created.keep();
}

class StagingFolder {
 public:
  StagingFolder(fs::path path, int rank) : path_(std::move(path)), rank_(rank) {}
  ~StagingFolder() { remove(); }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const fs::path& path() const { return path_; }

  void remove() const {
    std::error_code ignored;  // A remaining folder does not affect the model.
    if (rank_ == 0) fs::remove_all(path_, ignored);
  }

 private:
  const fs::path path_;
  const int rank_;
};

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

// Sorted by name.
NamedTensors metas_of(const checkpoint::SavePlan& plan) {
  std::map<std::string, at::Tensor> metas;
  for (const checkpoint::PlannedTensor& tensor : plan.tensors)
    metas.emplace(
        tensor.entry.name,
        at::empty(tensor.entry.shape, at::dtype(scalar_type_of(tensor.entry)).device(at::kMeta)));
  return {metas.begin(), metas.end()};
}

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
  write_folder(folder, divided(under_first_names(tensors, first_names(tensors)), options),
               [&](const std::string& name) { return by_name.at(name); });
}

void save_weights(Stateful& state, const fs::path& folder, const ProcessGroup& group,
                  const SaveWeightsOptions& options) {
  const CheckpointRanks ranks(group.split(/*color=*/0), options.timeout);
  NewFolders created(ranks.rank() == 0 ? folder : fs::path());
  const StagingFolder staging(folder / staging_name, ranks.rank());
  const auto descriptions = ranks.all("tensors to save", [&] {
    return checkpoint::describe({{std::string(weights_part), state.state_dict()}});
  });
  std::vector<Shard> shards;
  ranks.rank_0("names of weights", [&] {  // Before anything is written.
    std::map<std::string, std::string> firsts;
    if (auto* const weights = dynamic_cast<WeightState*>(&state))
      for (const auto& [name, target] : weights->targets()) firsts.emplace(name, target.first_name);
    NamedTensors metas = metas_of(checkpoint::make_plan(descriptions));
    shards = divided(under_first_names(std::move(metas), firsts), options);
    staging.remove();  // A killed save leaves it.
    return std::string();
  });
  {
    Checkpointer checkpoints(staging.path(), group, {.timeout = options.timeout});
    checkpoints.save(1, {{std::string(weights_part), &state}});
  }
  ranks.rank_0("weights", [&] {
    const CheckpointReader reader(*latest_checkpoint(staging.path()));
    write_folder(folder, shards, [&](const std::string& name) {
      return reader.read(std::string(weights_part), name);
    });
    staging.remove();
    created.keep();
    return std::string();
  });
}

void save_weights(torch::nn::Module& module, const fs::path& folder, const ProcessGroup& group,
                  const SaveWeightsOptions& options) {
  save_weights(*state_of(module), folder, group, options);
}

}  // namespace lockstep
