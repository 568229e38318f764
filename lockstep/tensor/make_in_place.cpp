// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/make_in_place.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <malloc.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/operator_interception.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/tensor/touched_tensors.h"

namespace lockstep {
namespace {

using Places = std::map<std::string, at::Tensor>;
using Stack = torch::jit::Stack;
using tensor::OperatorInterception;

std::vector<at::Tensor> results_of(const c10::OperatorHandle& op, const Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) tensors.push_back(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& tensor : stack[i].toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

NamedTensors tensors_of(const std::shared_ptr<torch::nn::Module>& made) {
  require(made != nullptr, "initialize: the function makes no module");
  return named_tensors(*made);
}

struct Origin {
  std::size_t call = 0;
  std::size_t result = 0;

  auto operator<=>(const Origin&) const = default;
};

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.numel() > 0 && tensor.storage_offset() == 0 &&
         tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

// The module's tensors that can be at their places.
std::map<Origin, std::string> origins_of(const MakeModule& make, const Places& places) {
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // Prevents reuse of the address.
    Origin origin;
  };
  std::unordered_map<const c10::StorageImpl*, Seen> seen;
  std::size_t calls = 0;
  const OperatorInterception interception([&](const c10::OperatorHandle& op, Stack& stack) {
    tensor::call_on_meta(op, stack);
    const std::vector<at::Tensor> results = results_of(op, stack);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].has_storage()) continue;
      const c10::Storage& storage = results[i].storage();
      seen.try_emplace(storage.unsafeGetStorageImpl(),
                       Seen{storage.getWeakStorageImpl(), {.call = calls, .result = i}});
    }
    ++calls;
  });
  std::map<Origin, std::string> origins;
  for (const auto& [name, tensor] : tensors_of(make())) {
    const auto place = places.find(name);
    if (place == places.end() || !fills_its_storage(tensor)) continue;
    if (tensor.sizes() != place->second.sizes() || !has_strides(tensor, place->second.strides()))
      continue;
    const auto found = seen.find(tensor.storage().unsafeGetStorageImpl());
    if (found != seen.end()) origins.emplace(found->second.origin, name);
  }
  return origins;
}

bool makes_empty(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::empty" || name == "aten::empty_strided";
}

// Without values: the constructor may write to the tensor without an operator.
void make_empty(const c10::OperatorHandle& op, Stack& stack, const at::Tensor& place) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "device")
      stack[stack.size() - arguments.size() + i] = c10::Device(c10::kMeta);
  op.callBoxed(stack);
  const at::Tensor meta = stack.back().toTensor();
  const at::TensorOptions options(meta.scalar_type());
  if (meta.scalar_type() != place.scalar_type() || meta.nbytes() != place.nbytes()) {
    stack.back() = at::empty_strided(meta.sizes(), meta.strides(), options);
    return;
  }
  touch(place);
  stack.back() = at::empty({0}, options)
                     .set_(place.storage(), place.storage_offset(), meta.sizes(), meta.strides());
}

// Unless others share the storage. Returns bytes freed.
std::size_t move(const at::Tensor& tensor, const at::Tensor& place) {
  at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool can_move = tensor.has_storage() && tensor.is_cpu() && tensor.storage_offset() == 0 &&
                        tensor.scalar_type() == place.scalar_type() &&
                        tensor.storage().nbytes() == place.nbytes() &&
                        tensor.storage().use_count() == 1 && impl.allow_tensor_metadata_change();
  if (!can_move) return 0;
  touch(place);
  std::memcpy(place.mutable_data_ptr(), tensor.storage().data(), place.nbytes());
  impl.set_storage_keep_dtype(place.storage());
  impl.set_storage_offset(place.storage_offset());
  return place.nbytes();
}

// Returns freed memory to the system. Otherwise malloc() keeps fragments between small objects, up
// to the size of all tensors.
class Trimming {
 public:
  ~Trimming() { trim(1); }
  void note_freed(std::size_t bytes) {
    freed_ += bytes;
    trim(std::size_t{32} << 20);
  }

 private:
  void trim(std::size_t least) {
    if (freed_ < least) return;
    ::malloc_trim(0);
    freed_ = 0;
  }

  std::size_t freed_ = 0;
};

// Tensors of known origin are at their places.
std::shared_ptr<torch::nn::Module> make_at(const MakeModule& make,
                                           const std::map<Origin, std::string>& origins,
                                           const Places& places) {
  std::size_t calls = 0;
  Trimming trimming;
  auto next = origins.begin();
  const OperatorInterception interception([&](const c10::OperatorHandle& op, Stack& stack) {
    touch_arguments(op, stack);
    const auto is_next = [&] { return next != origins.end() && next->first.call == calls; };
    if (is_next() && makes_empty(op))
      make_empty(op, stack, places.at(std::exchange(next, std::next(next))->second));
    else
      op.callBoxed(stack);
    for (; is_next(); ++next) {
      const std::vector<at::Tensor> results = results_of(op, stack);
      if (next->first.result < results.size())
        trimming.note_freed(move(results[next->first.result], places.at(next->second)));
    }
    ++calls;
  });
  return make();
}

std::string text_of(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " + c10::str(tensor.sizes());
}

void require_same_tensors(const NamedTensors& made, const Places& places) {
  Mismatches mismatches;
  std::set<std::string> found;
  for (const auto& [name, tensor] : made) {
    found.insert(name);
    const auto place = places.find(name);
    if (place == places.end())
      mismatches.add(name + " is made and is not in the module");
    else if (tensor.scalar_type() != place->second.scalar_type() ||
             tensor.sizes() != place->second.sizes())
      mismatches.add(name + " is " + text_of(place->second) + " in the module and is made as " +
                     text_of(tensor));
    else if (tensor.is_meta())
      mismatches.add(name + " is made on the meta device");
  }
  for (const auto& [name, place] : places)
    if (!found.contains(name)) mismatches.add(name + " is not made");
  mismatches.require_none("initialize: the function makes another module");
}

void copy_others(const NamedTensors& made, const Places& places) {
  const auto beginning_of = [](const at::Tensor& tensor) {
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const auto offset = static_cast<std::size_t>(tensor.storage_offset());
    return std::pair(storage, offset * tensor.element_size());
  };
  std::set<std::pair<const c10::StorageImpl*, std::size_t>> taken;
  for (const auto& [name, tensor] : made) taken.insert(beginning_of(tensor));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : made) {
    at::Tensor place = places.at(name);
    const auto beginning = beginning_of(place);
    if (tensor.numel() == 0) continue;
    if (beginning_of(tensor) == beginning && has_strides(tensor, place.strides())) continue;
    require(!taken.contains(beginning), [&, &name = name] {
      return "initialize: the function makes " + name +
             " in another way when it is called again: it must make the same module";
    });
    place.copy_(tensor);
  }
}

}  // namespace

void make_in_place(const MakeModule& make, const NamedTensors& places) {
  const Places by_name(places.begin(), places.end());
  Places on_cpu = by_name;
  std::erase_if(on_cpu, [](const auto& place) { return !place.second.is_cpu(); });
  const auto module = make_at(make, origins_of(make, on_cpu), on_cpu);
  const NamedTensors made = tensors_of(module);
  require_same_tensors(made, by_name);
  copy_others(made, by_name);
}

}  // namespace lockstep
