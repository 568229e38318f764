// SPDX-License-Identifier: Apache-2.0
#include "bench/collectives/flag_barrier.h"

#include <fcntl.h>
#include <lockstep/base/spin_pause.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace bench {

namespace {

constexpr int spins_before_yield = 1 << 14;

int or_throw(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Rank 0 creates the file; the others open it at rank 0's descriptor in /proc.
int shared_file(const lockstep::ProcessGroup& world, std::size_t bytes) {
  std::int64_t where[2] = {getpid(), -1};
  if (world.rank() == 0) {
    where[1] = or_throw(memfd_create("flag barrier", MFD_CLOEXEC), "memfd_create");
    or_throw(ftruncate(static_cast<int>(where[1]), static_cast<off_t>(bytes)), "ftruncate");
  }
  world.broadcast({.data = where, .count = 2, .dtype = lockstep::DType::int64}, /*root=*/0);
  if (world.rank() == 0) return static_cast<int>(where[1]);
  const auto path = "/proc/" + std::to_string(where[0]) + "/fd/" + std::to_string(where[1]);
  return or_throw(open(path.c_str(), O_RDWR | O_CLOEXEC), path.c_str());
}

}  // namespace

FlagBarrier::FlagBarrier(const lockstep::ProcessGroup& world)
    : rank_(world.rank()), size_(world.size()) {
  const std::size_t bytes = sizeof(Flag) * size_;
  const int file = shared_file(world, bytes);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  flags_ = static_cast<Flag*>(data);
  world.barrier();  // All ranks have opened it.
  close(file);
}

FlagBarrier::~FlagBarrier() { munmap(flags_, sizeof(Flag) * size_); }

void FlagBarrier::wait() {
  flags_[rank_].turn.store(++turn_, std::memory_order_release);
  for (int rank = 0; rank < size_; ++rank) {
    int spins = 0;
    while (static_cast<std::int32_t>(flags_[rank].turn.load(std::memory_order_acquire) - turn_) <
           0) {
      lockstep::spin_pause();
      if (++spins % spins_before_yield == 0) sched_yield();
    }
  }
}

}  // namespace bench
