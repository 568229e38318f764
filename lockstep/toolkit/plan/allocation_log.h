// Records the CPU memory that tensors allocate and free during its lifetime.
//
// Thread safety: counts tensors of all threads. One log exists at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace lockstep::plan {

class AllocationLog {
 public:
  AllocationLog();
  ~AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;

  // Excludes the allocation at `data` from the whole log, unless it was freed.
  void leave_out(const void* data);

  // Bytes since the log began.
  double live() const;
  double peak() const;

  // Ignores earlier memory.
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

}  // namespace lockstep::plan
