// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/state_transfer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/hash.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::json;

// Parts by name, each with values, and the tensors' types and shapes.
Json description_of(const std::vector<std::pair<std::string, StateDict>>& states) {
  Json parts = Json::array();
  for (const auto& [name, state] : states) {
    Json values = Json::object();
    for (const auto& [key, value] : state.values)
      values[key] = {value.index(), std::visit([](const auto& one) { return Json(one); }, value)};
    Json tensors = Json::object();
    for (const auto& [key, tensor] : state.tensors)
      tensors[key] = {static_cast<int>(tensor.data.scalar_type()), tensor.shape, tensor.of_rank_0};
    parts.push_back({name, values, tensors});
  }
  return parts;
}

template <std::size_t index = 0>
StateValue value_in(const Json& json, std::size_t wanted) {
  if constexpr (index < std::variant_size_v<StateValue>) {
    if (index == wanted) return json.get<std::variant_alternative_t<index, StateValue>>();
    return value_in<index + 1>(json, wanted);
  } else {
    throw Error(Fault::corrupt, "a received state has a value of an unknown type");
  }
}

StateTensor described(at::IntArrayRef shape, at::ScalarType type, bool of_rank_0) {
  StateTensor tensor = whole(at::empty(shape, at::dtype(type).device(at::kMeta)));
  tensor.of_rank_0 = of_rank_0;
  return tensor;
}

// Its tensors are on meta.
StateDict state_in(const Json& values, const Json& tensors) {
  StateDict state;
  for (const auto& [key, value] : values.items())
    state.values.emplace(key, value_in(value.at(1), value.at(0).get<std::size_t>()));
  for (const auto& [key, tensor] : tensors.items()) {
    const auto shape = tensor.at(1).get<std::vector<std::int64_t>>();
    const auto type = static_cast<at::ScalarType>(tensor.at(0).get<int>());
    state.tensors.emplace(key, described(shape, type, tensor.at(2).get<bool>()));
  }
  return state;
}

at::Tensor bytes_of(const at::Tensor& contiguous) {
  return contiguous.reshape({-1}).view(at::kByte);
}

// `fill` writes the requested tensors.
template <class Fill>
void load_filled(const std::string& name, Stateful& state, StateDict description, Fill fill) {
  const StateRequest request = state.wanted(description);
  StateDict filled{.tensors = {}, .values = description.values};
  for (auto& [key, tensor] : description.tensors) {
    const auto found = request.find(key);
    const bool is_wanted = found != request.end();
    const bool is_all = is_wanted && found->second.boxes.empty() && found->second.begin == 0 &&
                        found->second.end == tensor.data.numel();
    if (is_wanted && !is_all)
      throw Error(Fault::unsupported, "the state '" + name + "' needs a part of '" + key +
                                          "', and only whole tensors can be moved");
    const at::TensorOptions type = at::TensorOptions().dtype(tensor.data.scalar_type());
    const bool has_place = is_wanted && found->second.into.defined();
    at::Tensor data = has_place ? found->second.into : at::empty(tensor.shape, type);
    fill(key, data);
    if (!is_wanted) continue;
    tensor.data = std::move(data);
    filled.tensors.emplace(key, std::move(tensor));
  }
  state.load_state_dict(std::move(filled));
}

[[noreturn]] void refuse(const std::string& part) {
  throw Error(Fault::unsupported,
              "training cannot continue without a lost rank, because no other rank has its part of "
              "the state '" +
                  part + "': use a Checkpointer, and restart from its checkpoints instead");
}

// Equal if ranks have the same whole tensors.
std::int64_t hash_of(const StateDict& state, bool is_odd) {
  std::size_t hash = 0;
  for (const auto& [key, tensor] : state.tensors) {
    const bool is_whole = tensor.is_whole();
    hash = c10::hash_combine(hash, c10::get_hash(key, tensor.shape, is_whole ? 0 : is_odd ? 1 : 2));
  }
  return static_cast<std::int64_t>(hash);
}

}  // namespace

void require_whole(const TrainingState& state, const ProcessGroup& group) {
  const NamedStates& states = state.parts();
  if (!state.shared_part().empty()) refuse(state.shared_part());
  std::vector<std::int64_t> least;
  for (const auto& [name, part] : states)
    least.push_back(hash_of(part->state_dict(), group.rank() % 2 == 1));
  std::vector<std::int64_t> most = least;
  if (states.empty() || group.size() == 1) return;
  const auto reduce = [&](std::vector<std::int64_t>& hashes, ReduceOp op) {
    group.all_reduce({.data = hashes.data(), .count = hashes.size(), .dtype = DType::int64}, op);
  };
  reduce(least, ReduceOp::min);
  reduce(most, ReduceOp::max);
  for (std::size_t i = 0; i < least.size(); ++i)
    if (least[i] != most[i]) refuse(states[i].first);
}

StateDict copy_of(const StateDict& state) {
  const at::NoGradGuard no_grad;
  StateDict copy = state;
  for (auto& [key, tensor] : copy.tensors) tensor.data = tensor.data.clone();
  return copy;
}

void load(const std::string& name, Stateful& state, const StateDict& saved) {
  const at::NoGradGuard no_grad;
  StateDict description{.tensors = {}, .values = saved.values};
  for (const auto& [key, tensor] : saved.tensors)
    description.tensors.emplace(
        key, described(tensor.shape, tensor.data.scalar_type(), tensor.of_rank_0));
  load_filled(name, state, std::move(description), [&](const std::string& key, at::Tensor& data) {
    data.view(saved.tensors.at(key).data.sizes()).copy_(saved.tensors.at(key).data);
  });
}

void send_state(const NamedStates& states, const ProcessGroup& group, int to) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, StateDict>> sent;
  for (const auto& [name, state] : states) sent.emplace_back(name, state->state_dict());
  const std::vector<std::uint8_t> text = Json::to_cbor(description_of(sent));
  std::uint64_t bytes = text.size();
  group.send({.data = &bytes, .count = 1, .dtype = DType::uint64}, to);
  group.send(
      {.data = const_cast<std::uint8_t*>(text.data()), .count = text.size(), .dtype = DType::uint8},
      to);
  for (const auto& [name, state] : sent)
    for (const auto& [key, tensor] : state.tensors)
      if (tensor.data.numel() > 0)
        lockstep::send(bytes_of(tensor.data.detach().cpu().contiguous()), group, to);
}

void receive_state(const NamedStates& states, const ProcessGroup& group, int from) {
  const at::NoGradGuard no_grad;
  std::uint64_t bytes = 0;
  group.recv({.data = &bytes, .count = 1, .dtype = DType::uint64}, from);
  std::vector<std::uint8_t> text(bytes);
  group.recv({.data = text.data(), .count = text.size(), .dtype = DType::uint8}, from);
  const Json parts = Json::from_cbor(text);
  if (parts.size() != states.size())
    throw Error(Fault::mismatch, "a rank that joins adds " + std::to_string(states.size()) +
                                     " parts to the state of the training, the others " +
                                     std::to_string(parts.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, state] = states[i];
    if (parts[i].at(0) != name)
      throw Error(Fault::mismatch, "a rank that joins adds '" + name + "' to the state of the " +
                                       "training, where the others add '" +
                                       parts[i].at(0).get<std::string>() + "'");
    load_filled(name, *state, state_in(parts[i].at(1), parts[i].at(2)),
                [&](const std::string&, at::Tensor& data) {
                  if (data.numel() > 0) recv(bytes_of(data), group, from);
                });
  }
}

}  // namespace lockstep::train
