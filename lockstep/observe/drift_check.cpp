// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/drift_check.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/comm/values.h"
#include "lockstep/optim/optimizer_options.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

struct ReplicaState {
  Facts settings;      // Types, shapes, and hyperparameters.
  Facts fingerprints;  // XXH3, 64 bits, of each tensor's elements.
  Facts parts;         // As above, for parameters cut over ranks.
  std::string boxes;   // Boxes of these parts.
};

std::string layout_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return text.str();
}

std::string fingerprint_of(const at::Tensor& tensor) {
  std::array<char, 16> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), digest_of(tensor), 16);
  return {text.data(), end.ptr};
}

// Exchanged first by the ranks.
struct Hashes {
  std::uint64_t whole = 0, parts = 0, boxes = 0;
};

Hashes hashes_of(const ReplicaState& state) {
  return {hash_of_elements(encode(state.settings) + encode(state.fingerprints)),
          hash_of_elements(encode(state.parts)), hash_of_elements(state.boxes)};
}

bool agree(const std::vector<Hashes>& all, std::uint64_t Hashes::*member) {
  return std::all_of(all.begin(), all.end(),
                     [&](const Hashes& each) { return each.*member == all.front().*member; });
}

std::string text_of(const Boxes& boxes) {
  std::string text = "along " + std::to_string(boxes.cat_dim);
  for (const Box& box : boxes.list) text += ", " + text_of(box);
  return text;
}

std::string describe_differences(const std::vector<Facts>& settings,
                                 const std::vector<Facts>& fingerprints) {
  std::vector<std::string> lines = differing_tensors(fingerprints);
  for (std::string& line : differing_values(settings)) lines.push_back(std::move(line));
  if (lines.empty()) lines.push_back("the tensors are in another order");
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

// `optimizer` may be null.
ReplicaState state_of(const NamedTensors& tensors, const Layouts& layouts,
                      const torch::optim::Optimizer* optimizer) {
  ReplicaState state;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
            [&] { return "replicas cannot be compared: " + name + " is undefined or not dense"; });
    const auto layout = layouts.find(name);
    if (layout == layouts.end()) {
      state.settings.emplace_back(name, layout_of(tensor));
      state.fingerprints.emplace_back(name, fingerprint_of(tensor));
    } else {
      state.boxes += name + ' ' + text_of(layout->second.boxes) + '\n';
      state.parts.emplace_back(name, layout_of(tensor) + ' ' + fingerprint_of(tensor));
    }
  }
  if (optimizer != nullptr)
    for (auto& fact : hyperparameters_of(*optimizer)) state.settings.push_back(std::move(fact));
  return state;
}

// Collective. Sends 24 bytes per rank, and all of `state` only if these differ. A different `call`,
// the caller's name, is a mismatch of `group`.
void require_equal(const ReplicaState& state, const ProcessGroup& group, std::string_view call) {
  const std::vector<Hashes> hashes = all_gather_value(hashes_of(state), group, {.label = call});
  const bool with_parts = agree(hashes, &Hashes::boxes);
  if (agree(hashes, &Hashes::whole) && (!with_parts || agree(hashes, &Hashes::parts))) return;
  Facts tensors = state.fingerprints;
  if (with_parts) tensors.insert(tensors.end(), state.parts.begin(), state.parts.end());
  const std::vector<Facts> settings = gather(state.settings, group, call);
  const std::vector<Facts> fingerprints = gather(tensors, group, call);
  throw Error(Fault::mismatch, std::string(call) + ": the replicas have drifted apart:" +
                                   describe_differences(settings, fingerprints));
}

}  // namespace

DriftCheck::DriftCheck(const torch::nn::Module& module, const ProcessGroup& group,
                       DriftCheckOptions options)
    : module_(module), optimizer_(nullptr), group_(group), options_(options) {
  require(options_.every > 0, "DriftCheck: `every` must be at least 1");
}

DriftCheck::DriftCheck(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                       const ProcessGroup& group, DriftCheckOptions options)
    : module_(module), optimizer_(&optimizer), group_(group), options_(options) {
  require(options_.every > 0, "DriftCheck: `every` must be at least 1");
  hyperparameters_of(optimizer);  // Reports unsupported options at once.
}

void DriftCheck::step() {
  if (++steps_ % options_.every != 0) return;
  // The module may have new tensors.
  const NamedTensors tensors =
      options_.buffers ? named_tensors(module_) : named_parameters(module_);
  require_equal(state_of(tensors, layouts_of(module_), optimizer_), group_,
                "drift check after step " + std::to_string(steps_));
}

void require_equal_replicas(const NamedTensors& tensors, const ProcessGroup& group) {
  require_equal(state_of(tensors, {}, nullptr), group, "require_equal_replicas");
}

void require_equal_replicas(const NamedTensors& tensors, const torch::optim::Optimizer& optimizer,
                            const ProcessGroup& group) {
  require_equal(state_of(tensors, {}, &optimizer), group, "require_equal_replicas");
}

}  // namespace lockstep
