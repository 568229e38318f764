// A pipe in shared memory of two ranks: a ring of bytes.
//
// Thread safety: one thread writes and one reads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/shm/peers.h"

namespace lockstep {

class ShmPipe final : public Pipe {
 public:
  static std::size_t bytes();  // Size of its memory.

  explicit ShmPipe(SharedMemory memory);

  std::size_t write(const std::byte* data, std::size_t bytes) override;
  std::size_t read(std::byte* data, std::size_t bytes) override;
  std::size_t readable() const override;
  void count_sent() override;
  void count_received() override;
  std::size_t pending() const override;

 private:
  struct Ring;
  Ring& ring() const;

  SharedMemory memory_;
};

}  // namespace lockstep
