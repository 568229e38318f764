// Records the CPU memory that tensors allocate and free while it exists.
//
// Thread safety: tensors of all threads count. One log exists at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace lockstep::parallel {

class AllocationLog {
 public:
  AllocationLog();
  ~AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;

  // Excludes the memory at `data`, which is allocated now, also after this call.
  void leave_out(const void* data);

  // Allocated since the log began: still allocated, and the peak.
  double live() const;
  double peak() const;

  // Earlier memory does not count.
  void note_taken(const void* data, std::size_t bytes);
  void note_freed(const void* data);

 private:
  struct Taken {
    std::size_t event;  // Index in events_.
    std::int64_t bytes;
  };

  std::vector<std::int64_t> events_;  // Bytes allocated or, if negative, freed.
  std::unordered_map<const void*, Taken> taken_;
};

}  // namespace lockstep::parallel
