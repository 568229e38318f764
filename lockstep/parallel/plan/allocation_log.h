// Records the CPU memory that tensors take and free while it exists.
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

  // Memory at `data`, which is there now, does not count: neither before nor after.
  void leave_out(const void* data);

  // Bytes taken since the log began: those still there, and the most at one time.
  double live() const;
  double peak() const;

  // Memory that was taken before the log began does not count.
  void note_taken(const void* data, std::size_t bytes);
  void note_freed(const void* data);

 private:
  struct Taken {
    std::size_t event;  // Its place in events_.
    std::int64_t bytes;
  };

  std::vector<std::int64_t> events_;  // Bytes taken, or, if negative, freed.
  std::unordered_map<const void*, Taken> taken_;
};

}  // namespace lockstep::parallel
