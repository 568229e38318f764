// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/replica_state.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/bytes.h"
#include "lockstep/comm/values.h"
#include "lockstep/optim/optimizer_options.h"

namespace lockstep {
namespace {

std::string layout_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return text.str();
}

// The fingerprint of the elements in their order, whatever the layout: a tensor that is not
// contiguous is copied.
std::string fingerprint_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  const std::uint64_t hash = XXH3_64bits(values.const_data_ptr(), values.nbytes());
  std::array<char, 16> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), hash, 16).ptr};
}

std::uint64_t hash_of(const ReplicaState& state) {
  const std::string text = encode(state.settings) + encode(state.fingerprints);
  return XXH3_64bits(text.data(), text.size());
}

std::vector<Facts> gather(const Facts& facts, const ProcessGroup& group, std::string_view call) {
  std::vector<Facts> all;
  for (const std::string& text : all_gather_bytes(encode(facts), group, {.label = call}))
    all.push_back(decode_facts(text));
  return all;
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

}  // namespace

ReplicaState state_of(const NamedTensors& tensors, const torch::optim::Optimizer* optimizer) {
  ReplicaState state;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
            [&] { return "replicas cannot be compared: " + name + " is undefined or not dense"; });
    state.settings.emplace_back(name, layout_of(tensor));
    state.fingerprints.emplace_back(name, fingerprint_of(tensor));
  }
  if (optimizer != nullptr)
    for (auto& fact : hyperparameters_of(*optimizer)) state.settings.push_back(std::move(fact));
  return state;
}

void require_equal(const ReplicaState& state, const ProcessGroup& group, std::string_view call) {
  const std::vector<std::uint64_t> hashes =
      all_gather_value(hash_of(state), group, {.label = call});
  if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) == hashes.end())
    return;
  const std::vector<Facts> settings = gather(state.settings, group, call);
  const std::vector<Facts> fingerprints = gather(state.fingerprints, group, call);
  throw Error(Fault::mismatch, std::string(call) + ": the replicas have drifted apart:" +
                                   describe_differences(settings, fingerprints));
}

}  // namespace lockstep
