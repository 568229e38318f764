// Tensors of one host's ranks in shared memory, which all of them read and write in place.

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

// Reusable blocks of shared memory. Each group owns one object (attachment_of()) and destroys it at
// its end; remaining tensors keep their block. A rank reuses a block once its own tensor is freed
// and all ranks have then entered another publish(). Each rank must finish reading before that
// call, so none waits after reading.
// Thread safety: one thread of each rank calls publish(). Any thread may free its tensors.
class SharedSlots : public std::enable_shared_from_this<SharedSlots> {
 public:
  // Copies `values`, of one shape and type on all ranks, to shared memory. Returns all ranks'
  // copies, [values.size(), ...], in rank order. This rank's block is in use until this rank's own
  // tensor and its views are freed.
  // Blocking: collective over `group`, which owns this object.
  // Errors: ProcessGroup's; system, on all ranks, if the host has too little memory.
  std::vector<at::Tensor> publish(at::TensorList values, const ProcessGroup& group,
                                  const CallOptions& options);

  std::size_t bytes() const;

 private:
  struct Slot {
    RegisteredMemory memory;  // Rank r's block begins at r * bytes_of_rank.
    std::size_t bytes_of_rank = 0;
    bool is_used = false;
    std::uint64_t released = 0;  // calls_ at release.
  };

  std::optional<std::size_t> take(std::size_t bytes);
  void release(std::size_t slot);
  std::vector<std::int64_t> exchange(std::optional<std::size_t> slot, const ProcessGroup& group,
                                     const CallOptions& options);

  mutable std::mutex mutex_;  // Guards the next two.
  std::vector<Slot> slots_;   // Equal sizes on all ranks, which choose free slots separately.
  std::uint64_t calls_ = 0;   // Finished exchange() calls: all ranks have entered them.
};

}  // namespace lockstep::nn
