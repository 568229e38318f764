// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/stored_tensor.h"
#include "lockstep/checkpoint/weight_files.h"
#include "lockstep/checkpoint/weight_fit.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/state.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using checkpoint::CheckpointRanks;
using checkpoint::StoredTensor;

bool are_bytewise_equal(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Elements.
constexpr std::int64_t converted_at_once = 1 << 20;

class SavedWeights {
 public:
  SavedWeights(const fs::path& path, const LoadWeightsOptions& options) : part_(options.part) {
    if (has_weight_files(path)) {
      files_.emplace(path);
      for (const WeightFiles::Tensor& each : files_->tensors())
        add(options.names, {.name = each.entry->name,
                            .stored = {.file = each.file, .entry = each.entry},
                            .shape = each.entry->shape});
    } else {
      checkpoint_.emplace(path);
      const StateDict& saved = checkpoint_->contents(part_);
      contents_.values = saved.values;
      for (const auto& [name, tensor] : saved.tensors)
        add(options.names, {.name = name,
                            .type = tensor.data.scalar_type(),
                            .shape = tensor.shape,
                            .digest = tensor.digest});
    }
  }

  // Chooses types. Returns the names that keep their values.
  // Errors: as load_weights().
  std::vector<std::string> fit(const std::optional<StateTargets>& targets,
                               const LoadWeightsOptions& options) {
    require(targets || (!options.convert_types && options.may_be_missing.empty()),
            "this state does not list its tensors (WeightState), so convert_types and "
            "may_be_missing have no effect");
    checkpoint::StoredForms forms;
    for (auto& [name, source] : sources_) {
      const bool is_needed = !targets || targets->contains(name);
      if (source.stored.entry != nullptr)
        source.type = is_needed ? scalar_type_of(*source.stored.entry, source.stored.file->name())
                                : find_scalar_type(source.stored.entry->type).value_or(at::kByte);
      forms.emplace(name, checkpoint::StoredForm{source.name, source.type, source.shape,
                                                 source.is_transposed});
    }
    std::vector<std::string> kept;
    if (targets) kept = checkpoint::fit(forms, *targets, options);
    for (const auto& [name, source] : sources_) {
      const at::ScalarType type = targets ? targets->at(name).type : source.type;
      StateTensor tensor = whole(at::empty(source.shape, at::dtype(type).device(at::kMeta)));
      if (type == source.type) tensor.digest = source.digest;
      contents_.tensors.emplace(name, std::move(tensor));
    }
    return kept;
  }

  // Requires fit(). On the meta device.
  const StateDict& contents() const { return contents_; }

  const std::vector<std::string>& ignored() const { return ignored_; }

  Facts facts() const {
    Facts facts;
    for (const auto& [name, source] : sources_)
      facts.emplace_back(shown(name), std::string(c10::toString(source.type)) + " " +
                                          c10::str(at::IntArrayRef(source.shape)));
    return facts;
  }

  void require_readable(const StateRequest& request) const {
    for (const auto& [name, range] : request) {
      const Source& source = sources_.at(name);
      if (source.is_transposed || is_converted(name, source)) continue;  // Read into a copy.
      if (checkpoint_)
        checkpoint_->require_readable(part_, {{source.name, range}});
      else
        source.stored.require_fit(range);
    }
  }

  // Errors: mismatch for unequal values.
  void require_equal(const std::map<std::string, std::string>& first_names) const {
    std::map<std::string, std::string> known;  // The first saved name, by the first name.
    for (const auto& [name, first] : first_names) {
      if (!sources_.contains(name)) continue;
      const auto [other, is_new] = known.emplace(first, name);
      if (is_new) continue;
      const StateTensor& one = contents_.tensors.at(other->second);
      const StateTensor& again = contents_.tensors.at(name);
      const bool is_equal = one.digest && again.digest
                                ? *one.digest == *again.digest
                                : are_bytewise_equal(read_whole(other->second), read_whole(name));
      if (!is_equal)
        throw Error(Fault::mismatch, shown(other->second) + " and " + shown(name) +
                                         " are one tensor in the module, and were saved with "
                                         "unequal elements");
    }
  }

  StateDict read(const StateRequest& request) const {
    StateDict result{.tensors = {}, .values = contents_.values};
    for (const auto& [name, range] : request) {
      StateTensor tensor = contents_.tensors.at(name);
      tensor.data = read(name, sources_.at(name), range);
      tensor.begin = range.begin;
      tensor.boxes = range.boxes;
      result.tensors.emplace(name, std::move(tensor));
    }
    return result;
  }

 private:
  struct Source {
    std::string name;                          // In the file.
    StoredTensor stored = {};                  // Has no file for a checkpoint.
    at::ScalarType type = at::kFloat;          // In the file.
    std::vector<std::int64_t> shape;           // In the model.
    std::optional<std::uint32_t> digest = {};  // As StateTensor's.
    bool is_transposed = false;
  };

  void add(const NameTable& names, Source source) {
    const auto target = names.find(source.name);
    if (!target) return ignored_.push_back(source.name);
    if (target->transposed) {
      require(source.shape.size() == 2, [&] {
        return shown(source.name) + " cannot be transposed: it is no matrix, but has " +
               std::to_string(source.shape.size()) + " dimensions";
      });
      std::swap(source.shape[0], source.shape[1]);
      source.is_transposed = true;
      source.digest.reset();  // Elements of other order.
    }
    const auto [other, is_new] = sources_.try_emplace(target->name, std::move(source));
    require(is_new, [&, &first = other->second] {
      return "the table of names maps both " + shown(first.name) + " and " + shown(source.name) +
             " to " + shown(target->name);
    });
  }

  at::ScalarType type_of(const std::string& name) const {
    return contents_.tensors.at(name).data.scalar_type();
  }

  bool is_converted(const std::string& name, const Source& source) const {
    return type_of(name) != source.type;
  }

  at::Tensor read_whole(const std::string& name) const {
    return read(name, sources_.at(name),
                {.begin = 0, .end = contents_.tensors.at(name).data.numel()});
  }

  at::Tensor read(const std::string& name, const Source& source, const ElementRange& range) const {
    if (source.is_transposed) return read_transposed(name, source, range);
    return is_converted(name, source) ? read_converted(name, source, range)
                                      : read_stored(source, range);
  }

  at::Tensor read_stored(const Source& source, const ElementRange& range) const {
    if (!checkpoint_) return source.stored.read(range);
    return checkpoint_->read(part_, {{source.name, range}}).tensors.at(source.name).data;
  }

  // In chunks, except from a checkpoint, where each read verifies the whole tensor.
  at::Tensor read_converted(const std::string& name, const Source& source,
                            const ElementRange& range) const {
    if (!range.into.defined()) return read_stored(source, range).to(type_of(name));
    const at::Tensor into = range.into.view(-1);
    const std::int64_t step =
        checkpoint_ ? std::max<std::int64_t>(into.numel(), 1) : converted_at_once;
    for (std::int64_t begin = range.begin; begin < range.end; begin += step) {
      const std::int64_t end = std::min(begin + step, range.end);
      into.slice(0, begin - range.begin, end - range.begin)
          .copy_(read_stored(source, {.begin = begin, .end = end, .boxes = range.boxes}).flatten());
    }
    return range.into;
  }

  at::Tensor read_transposed(const std::string& name, const Source& source,
                             const ElementRange& range) const {
    const at::Tensor& meta = contents_.tensors.at(name).data;
    const at::Tensor turned =
        read_stored(source, {.begin = 0, .end = meta.numel()}).t().to(type_of(name));
    if (!range.into.defined() && range.boxes.empty() && range.end - range.begin == meta.numel())
      return turned;
    const at::Tensor data =
        range.into.defined() ? range.into : at::empty({range.end - range.begin}, turned.options());
    for (const PlacedBox& placed : place(meta.sizes().vec(), range.boxes, range.begin, range.end))
      view_in_data(data.view(-1), placed).copy_(view_in_whole(turned, placed.box));
    return data;
  }

  const std::string part_;
  std::optional<WeightFiles> files_;
  std::optional<CheckpointReader> checkpoint_;  // If there are no files.
  std::map<std::string, Source> sources_;
  std::vector<std::string> ignored_;
  StateDict contents_;
};

// Collective. Errors: mismatch.
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

template <class Action>
auto naming(const fs::path& path, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse && error.fault() != Fault::mismatch) throw;
    const std::string text = bare_text(error);
    if (text.starts_with(path.string())) throw;
    throw Error(error.fault(), path.string() + ": " + text);
  }
}

std::map<std::string, std::string> first_names_of(const std::optional<StateTargets>& targets,
                                                  const LoadWeightsOptions& options) {
  std::map<std::string, std::string> names = options.first_names;
  if (targets)
    for (const auto& [name, target] : *targets) names.insert_or_assign(name, target.first_name);
  return names;
}

LoadedWeights load(Stateful& state, const fs::path& path, const CheckpointRanks& ranks,
                   const LoadWeightsOptions& options) {
  agree(ranks, "which weights to load", [&] {
    return Facts{{"the path", path.string()}, {"the part", options.part}};
  });
  // Rank 0 chooses: a training may be saving another.
  const fs::path found = ranks.rank_0("place of weights", [&] { return place_of_weights(path); });
  std::optional<SavedWeights> saved;
  StateRequest request;
  LoadedWeights result;
  agree(ranks, "weights to load", [&] {
    return naming(found, [&] {
      saved.emplace(found, options);
      auto* const weights = dynamic_cast<WeightState*>(&state);
      const auto targets = weights ? std::optional(weights->targets()) : std::nullopt;
      result = {.kept = saved->fit(targets, options), .ignored = saved->ignored()};
      request = result.kept.empty() ? state.wanted(saved->contents())
                                    : weights->wanted_of_part(saved->contents());
      saved->require_readable(request);
      if (ranks.rank() == 0) saved->require_equal(first_names_of(targets, options));
      return saved->facts();
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
  return result;
}

}  // namespace

LoadedWeights load_weights(Stateful& state, const fs::path& path, const ProcessGroup& group,
                           const LoadWeightsOptions& options) {
  return load(state, path, {group.split(/*color=*/0), options.timeout}, options);
}

LoadedWeights load_weights(torch::nn::Module& module, const fs::path& path,
                           const ProcessGroup& group, const LoadWeightsOptions& options) {
  require_values(named_tensors(module), "load_weights");
  return load_weights(*state_of(module), path, group, options);
}

LoadedWeights load_weights(torch::nn::Module& module, const fs::path& path,
                           const LoadWeightsOptions& options) {
  require_values(named_tensors(module), "load_weights");
  return load(*state_of(module), path, {ProcessGroup::self(), options.timeout}, options);
}

LoadedWeights load_weights(const torch::jit::Module& script, const fs::path& path,
                           const LoadWeightsOptions& options) {
  ScriptModule module(script);
  return load_weights(module, path, options);
}

}  // namespace lockstep
