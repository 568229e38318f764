// Tensors of the ranks of one host, which all of them read and write where they lie.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::nn {

// Blocks of shared memory that are used again and again. Each group has one such object, see
// companion_of(), and frees the memory when it ends; tensors that still exist keep their block.
// Reuse: a rank enters a later publish() only after its reads of earlier blocks. So a rank writes
// to a block again once its own tensor is gone and all ranks have entered a later call, and nobody
// waits after reading. Thread safety: one thread of each rank calls publish(). Its tensors may go
// on any thread.
class SharedSlots : public std::enable_shared_from_this<SharedSlots> {
 public:
  // Copies `values`, whose equal shape and type are those of all ranks, to shared memory. Returns
  // all ranks' copies, of shape [values.size(), ...], in rank order. The own one is in use until
  // the tensor and all its views are gone. Blocking: collective over `group`, whose object this is.
  // Errors: as ProcessGroup's; system, on all ranks, when the host has too little memory.
  std::vector<at::Tensor> publish(at::TensorList values, const ProcessGroup& group,
                                  const CallOptions& options);

  std::size_t bytes() const;  // Of all ranks' blocks together.

 private:
  struct Slot {
    RegisteredMemory memory;  // Rank r's block begins at r * bytes_of_rank.
    std::size_t bytes_of_rank = 0;
    bool is_used = false;
    std::uint64_t released = 0;  // The value of calls_ when it was released.
  };

  std::optional<std::size_t> take(std::size_t bytes);
  void release(std::size_t slot);
  std::vector<std::int64_t> exchange(std::optional<std::size_t> slot, const ProcessGroup& group,
                                     const CallOptions& options);

  mutable std::mutex mutex_;  // Guards the next two.
  std::vector<Slot> slots_;   // Of equal sizes on all ranks; each chooses its own free one.
  std::uint64_t calls_ = 0;   // That all ranks have begun.
};

}  // namespace lockstep::nn
