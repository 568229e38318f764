// Which gradients in a device's memory are not finite, without waiting for the device at each one.
//
// In CPU memory scaled_copy() sees that as it copies. Here the question is enqueued, for many
// gradients in one launch, and answered once.
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
  // On this thread's current stream: looks at gradient_of(i) for each of `indices`. Undefined and
  // empty ones are finite.
  void enqueue(const std::vector<std::size_t>& indices,
               const std::function<at::Tensor(std::size_t)>& gradient_of);

  // The first index whose gradient was not finite, if one was; forgets all. Blocking: until the
  // device has looked. The current stream comes after those of enqueue().
  std::optional<std::size_t> first_non_finite();

  void clear();

 private:
  std::vector<std::size_t> indices_;
  std::vector<at::Tensor> finite_;  // Of each enqueue(), as booleans in the order of `indices_`.
};

}  // namespace lockstep
