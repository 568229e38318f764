// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/snapshot_memory.h"

#include <sys/mman.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

std::byte* SnapshotMemory::reserve(std::size_t size) {
  if (size <= size_) return data_;
  release();
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw_errno("a copy of the state, of " + std::to_string(size) + " bytes, to be saved");
  ::madvise(data, size, MADV_HUGEPAGE);  // Optional: small pages work too.
  data_ = static_cast<std::byte*>(data);
  size_ = size;
  return data_;
}

void SnapshotMemory::release() {
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace lockstep
