// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/stored_tensor.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using checkpoint::CheckpointRanks;
using checkpoint::StoredTensor;

// The files of safetensors at `path`: it itself, or all in that folder. None for a checkpoint.
std::vector<fs::path> safetensors_at(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  if (fs::exists(path / checkpoint::manifest_name, error)) return {};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

bool are_bytewise_equal(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Tensors on the disk under the module's names, whatever has them.
class SavedWeights {
 public:
  SavedWeights(const fs::path& path, const LoadWeightsOptions& options) : part_(options.part) {
    for (const fs::path& file : safetensors_at(path)) {
      files_.push_back(std::make_unique<SafetensorsFile>(file));
      for (const SafetensorsEntry& entry : files_.back()->header().entries)
        add(options.names, entry.name, whole(checkpoint::empty_of(entry, at::kMeta)),
            {.file = files_.back().get(), .entry = &entry});
    }
    if (!files_.empty()) return;
    checkpoint_.emplace(path);
    const StateDict& saved = checkpoint_->contents(part_);
    contents_.values = saved.values;
    for (const auto& [name, tensor] : saved.tensors) add(options.names, name, tensor, {});
  }

  // On the meta device.
  const StateDict& contents() const { return contents_; }

  void require_readable(const StateRequest& request) const {
    for (const auto& [name, range] : request) {
      const Source& source = sources_.at(name);
      if (source.is_transposed) continue;  // Read to a place of its own.
      if (checkpoint_)
        checkpoint_->require_readable(part_, {{source.name, range}});
      else
        source.stored.require_fit(range);
    }
  }

  // Errors: mismatch for two names of one tensor that have unequal values.
  void require_equal(const std::map<std::string, std::string>& first_names) const {
    for (const auto& [name, first] : first_names) {
      if (name == first || !sources_.contains(name) || !sources_.contains(first)) continue;
      const StateTensor &one = contents_.tensors.at(first), &other = contents_.tensors.at(name);
      const bool is_equal = one.digest && other.digest
                                ? *one.digest == *other.digest
                                : are_bytewise_equal(read_whole(first), read_whole(name));
      if (!is_equal)
        throw Error(Fault::mismatch, shown(first) + " and " + shown(name) +
                                         " are one tensor in the module, and were saved with "
                                         "unequal elements");
    }
  }

  StateDict read(const StateRequest& request) const {
    StateDict result{.tensors = {}, .values = contents_.values};
    for (const auto& [name, range] : request) {
      const Source& source = sources_.at(name);
      StateTensor tensor = contents_.tensors.at(name);
      tensor.data =
          source.is_transposed ? read_transposed(name, source, range) : read(source, range);
      tensor.begin = range.begin;
      tensor.boxes = range.boxes;
      result.tensors.emplace(name, std::move(tensor));
    }
    return result;
  }

 private:
  struct Source {
    std::string name;     // In the file.
    StoredTensor stored;  // Without a file in a checkpoint.
    bool is_transposed = false;
  };

  void add(const NameTable& names, const std::string& name, StateTensor tensor,
           const StoredTensor& stored) {
    const auto target = names.find(name);
    if (!target) return;
    const auto [other, is_new] = sources_.try_emplace(
        target->name, Source{.name = name, .stored = stored, .is_transposed = target->transposed});
    require(is_new, [&, &first = other->second] {
      return "both " + shown(first.name) + " and " + shown(name) + " are weights for " +
             shown(target->name);
    });
    if (target->transposed) {
      require(tensor.data.dim() == 2, [&] {
        return shown(name) + " cannot be transposed: it is no matrix, but has " +
               std::to_string(tensor.data.dim()) + " dimensions";
      });
      tensor.data = at::empty({tensor.data.size(1), tensor.data.size(0)}, tensor.data.options());
      tensor.shape = tensor.data.sizes().vec();
      tensor.digest.reset();  // Of other elements in that order.
    }
    contents_.tensors.emplace(target->name, std::move(tensor));
  }

  at::Tensor read(const Source& source, const ElementRange& range) const {
    if (!checkpoint_) return source.stored.read(range);
    return checkpoint_->read(part_, {{source.name, range}}).tensors.at(source.name).data;
  }

  at::Tensor read_whole(const std::string& name) const {
    const Source& source = sources_.at(name);
    const ElementRange all{.begin = 0, .end = contents_.tensors.at(name).data.numel()};
    return source.is_transposed ? read_transposed(name, source, all) : read(source, all);
  }

  // Through a copy of the whole tensor.
  at::Tensor read_transposed(const std::string& name, const Source& source,
                             const ElementRange& range) const {
    const at::Tensor& meta = contents_.tensors.at(name).data;
    const at::Tensor turned = read(source, {.begin = 0, .end = meta.numel()}).t();
    if (!range.into.defined() && range.boxes.empty() && range.end - range.begin == meta.numel())
      return turned;
    const at::Tensor data =
        range.into.defined() ? range.into : at::empty({range.end - range.begin}, turned.options());
    for (const PlacedBox& placed : place(meta.sizes().vec(), range.boxes, range.begin, range.end))
      view_in_data(data.view(-1), placed).copy_(view_in_whole(turned, placed.box));
    return data;
  }

  const std::string part_;
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::optional<CheckpointReader> checkpoint_;  // If there are no files.
  std::map<std::string, Source> sources_;
  StateDict contents_;
};

// Collective. Errors: mismatch if the facts of the ranks differ.
void agree(const CheckpointRanks& ranks, std::string_view what,
           const std::function<Facts()>& mine) {
  std::vector<Facts> facts;
  for (const std::string& text : ranks.all(what, [&] { return lockstep::encode(mine()); }))
    facts.push_back(decode_facts(text));
  const std::vector<std::string> lines = differing_values(facts);
  if (lines.empty()) return;
  std::string text = "load_weights: the ranks differ, and nothing was loaded:";
  for (const std::string& line : lines) text += "\n  " + line;
  throw Error(Fault::mismatch, text);
}

Facts facts_of(const StateDict& contents) {
  Facts facts;
  for (const auto& [name, tensor] : contents.tensors)
    facts.emplace_back(shown(name), std::string(c10::toString(tensor.data.scalar_type())) + " " +
                                        c10::str(tensor.data.sizes()));
  return facts;
}

template <class Action>
auto naming(const fs::path& path, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse && error.fault() != Fault::mismatch) throw;
    throw Error(error.fault(), path.string() + ": " + bare_text(error));
  }
}

}  // namespace

void load_weights(Stateful& state, const fs::path& path, const ProcessGroup& group,
                  const LoadWeightsOptions& options) {
  const CheckpointRanks ranks(group.split(/*color=*/0), options.timeout);
  agree(ranks, "which weights to load", [&] {
    return Facts{{"the path", path.string()}, {"the part", options.part}};
  });
  // Rank 0 says which: a training may be saving the next one.
  const fs::path found = ranks.rank_0("place of weights", [&] {
    return safetensors_at(path).empty() ? checkpoint::checkpoint_in(path) : path.string();
  });
  std::optional<SavedWeights> saved;
  StateRequest request;
  agree(ranks, "weights to load", [&] {
    return naming(found, [&] {
      saved.emplace(found, options);
      request = state.wanted(saved->contents());
      saved->require_readable(request);
      if (ranks.rank() == 0) saved->require_equal(options.first_names);
      return facts_of(saved->contents());
    });
  });
  StateDict loaded;
  ranks.all("weights", [&] {
    try {
      const at::NoGradGuard no_grad;
      loaded = saved->read(request);
    } catch (const Error& error) {
      throw Error(error.fault(), bare_text(error) + "; the weights are half loaded now");
    }
    return std::string();
  });
  state.load_state_dict(std::move(loaded));
}

}  // namespace lockstep
