// Finds gradients in a device's memory that are not finite, without a wait for each one.
//
// In CPU memory, scaled_copy() checks while it copies. Here the check is enqueued, for many
// gradients in one launch, and its result is read once.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep {

class FiniteCheck {
 public:
  // Enqueues on this thread's current stream a check of gradient_of(i) for each of `indices`.
  // Undefined and empty gradients are finite.
  void enqueue(const std::vector<std::size_t>& indices,
               const std::function<at::Tensor(std::size_t)>& gradient_of);

  // Returns the first index whose gradient was not finite, if any, and forgets all checks.
  // Blocking: waits for the device. The current stream must be ordered after those of enqueue().
  std::optional<std::size_t> first_non_finite();

  void clear();

 private:
  std::vector<std::size_t> indices_;
  std::vector<at::Tensor> finite_;  // One for each enqueue(): booleans in the order of `indices_`.
};

}  // namespace lockstep
