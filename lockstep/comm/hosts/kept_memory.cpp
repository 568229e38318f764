// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/kept_memory.h"

#include <functional>
#include <new>

namespace lockstep {
namespace {

constexpr std::align_val_t alignment{64};

bool lies_in(const Buffer& buffer, const std::byte* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  return std::greater_equal<>()(begin, data) &&
         std::less_equal<>()(begin + buffer.bytes(), data + bytes);
}

// Not zeroed: every use writes it before reading.
std::shared_ptr<std::byte[]> make_scratch(std::size_t bytes) {
  return {static_cast<std::byte*>(::operator new(bytes, alignment)),
          [](std::byte* data) { ::operator delete(data, alignment); }};
}

}  // namespace

RegisteredMemory KeptMemory::add(RegisteredMemory memory) {
  std::erase_if(known_, [](const Known& known) { return known.memory.expired(); });
  const auto shared = std::make_shared<RegisteredMemory>(std::move(memory));
  known_.push_back({shared, static_cast<const std::byte*>(shared->data()), shared->bytes()});
  return {shared, shared->data(), shared->bytes()};
}

Buffer KeptMemory::scratch(std::size_t which, const Buffer& shape) {
  if (scratch_.size() <= which) scratch_.resize(which + 1);
  Scratch& scratch = scratch_[which];
  if (scratch.bytes < shape.bytes()) {
    scratch = {};  // Frees the old memory before the allocation.
    scratch = {make_scratch(shape.bytes()), shape.bytes()};
  }
  Buffer buffer = shape;
  buffer.data = scratch.data.get();
  return buffer;
}

std::shared_ptr<const void> KeptMemory::owner_of(const Buffer& buffer) const {
  if (buffer.bytes() == 0) return nullptr;
  for (const Scratch& scratch : scratch_)
    if (scratch.data && lies_in(buffer, scratch.data.get(), scratch.bytes)) return scratch.data;
  for (const Known& known : known_)
    if (lies_in(buffer, known.data, known.bytes))
      if (auto memory = known.memory.lock()) return memory;
  return nullptr;
}

}  // namespace lockstep
