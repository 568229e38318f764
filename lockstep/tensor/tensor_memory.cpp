// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor_memory.h"

#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"

namespace lockstep {
namespace {

class Blocks {
 public:
  RegisteredMemory add(RegisteredMemory memory) {
    void* const begin = memory.data();
    const std::size_t bytes = memory.bytes();
    const std::lock_guard lock(mutex_);
    blocks_.emplace(begin, bytes);
    const std::shared_ptr<const void> owner(
        begin, [this, kept = std::move(memory)](const void* block) { remove(block); });
    return {owner, begin, bytes};
  }

  bool contains(const void* address) const {
    const std::lock_guard lock(mutex_);
    const auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(next);
    return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(begin) + bytes;
  }

 private:
  void remove(const void* block) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(blocks_.find(block));
  }

  mutable std::mutex mutex_;
  // Ranks as threads may add an address twice.
  std::multimap<const void*, std::size_t, std::less<>> blocks_;
};

// Never destroyed: tensors may outlive static objects.
Blocks& blocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

}  // namespace

std::uint64_t digest_of(const at::Tensor& tensor) {
  const at::Tensor values = plain_values(tensor);
  return hash_of({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

void require_values(const NamedTensors& tensors, std::string_view call) {
  for (const auto& [name, tensor] : tensors)
    require(!tensor.is_meta(), [&, &name = name] {
      return std::string(call) + ": " + name +
             " is on the meta device and has no values: a module that on_meta() has made is for " +
             "FullyShardedDataParallel or share_parameters, and for initialize() or " +
             "load_weights() of these";
    });
}

void move_from_meta(const at::Tensor& tensor, const at::Tensor& memory) {
  check(tensor.is_meta() && tensor.scalar_type() == memory.scalar_type() &&
            tensor.sizes() == memory.sizes(),
        "memory does not fit a tensor on the meta device");
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
}

RegisteredMemory shared_block(RegisteredMemory memory) { return blocks().add(std::move(memory)); }

bool lies_in_shared_block(const at::Tensor& tensor) {
  return tensor.numel() > 0 && blocks().contains(tensor.const_data_ptr());
}

}  // namespace lockstep
