// A minimal barrier: each rank sets its flag in shared memory and spins until all flags are set.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/comm.h>

#include <atomic>
#include <cstdint>

namespace bench {

class FlagBarrier {
 public:
  // Collective. Throws std::system_error.
  explicit FlagBarrier(const lockstep::ProcessGroup& world);
  FlagBarrier(const FlagBarrier&) = delete;
  FlagBarrier& operator=(const FlagBarrier&) = delete;
  ~FlagBarrier();

  void wait();

 private:
  struct alignas(64) Flag {
    std::atomic<std::uint32_t> turn;
  };

  int rank_;
  int size_;
  std::uint32_t turn_ = 0;
  Flag* flags_ = nullptr;  // One for each rank.
};

}  // namespace bench
