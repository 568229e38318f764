// The tensors of a call as one contiguous buffer.
//
// Thread safety: one thread at a time per object. Lifetime: keeps the tensors alive.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::torch_backend {

// Contiguous or adjacent tensors, like torch.chunk()'s, are used in place. Others use an
// uninitialised block.
class Parts {
 public:
  // Errors, naming `what`: misuse for no tensors or different types; otherwise as require_dense().
  Parts(std::vector<at::Tensor> tensors, std::string_view what);

  // For moving any type: movable() of tensor/buffers.h.
  Buffer buffer() const;

  // For reductions. Errors: unsupported, as require_reducible().
  Buffer buffer(ReduceOp op) const;

  // Each tensor's number of `buffer`'s elements; empty if all are equal.
  Counts counts(const Buffer& buffer) const;

  const at::Tensor& block() const { return block_; }

  void fill();          // Copies the tensors into the block.
  void spread() const;  // Copies the block into the tensors.

 private:
  template <class Act>
  void for_each_part(const Act& act) const;

  std::vector<at::Tensor> tensors_;
  at::Tensor block_;  // Contiguous.
  bool in_place_ = false;
};

}  // namespace lockstep::torch_backend
