// The tensors of a call as one buffer.
//
// Thread safety: distinct objects may be used by distinct threads. Lifetime: keeps the tensors
// alive.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::c10d {

// A list of tensors of one type, one after the other. They are used in place if they lie like that
// in memory, as the parts of torch.chunk() do, or a single contiguous tensor; otherwise through a
// block of their size, which has no values at first.
class Parts {
 public:
  // Errors: misuse for an empty list, unsupported for tensors that do not lie in CPU memory; both
  // name `what`. Misuse for tensors of different types.
  Parts(std::vector<at::Tensor> tensors, std::string_view what);

  // The block, for operations that move any type: movable() of tensor/buffers.h.
  Buffer buffer() const;

  // The block, for operations that reduce its type. Errors: unsupported, as require_reducible().
  Buffer buffer(ReduceOp op) const;

  // Elements of each tensor in `buffer`, which is one of the two above; empty if all are equal.
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

}  // namespace lockstep::c10d
