// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/on_threads.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

namespace lockstep {

void on_threads(std::int64_t count, c10::function_ref<void(std::int64_t)> body) {
  if (count == 1) return body(0);
  if (count == 0) return;
  at::Tensor numbers = at::empty({count}, at::kByte);  // Only for their addresses.
  const char* const first = static_cast<const char*>(numbers.data_ptr());
  const auto loop = [&](char** data, const std::int64_t* strides, std::int64_t n, std::int64_t m) {
    for (std::int64_t j = 0; j < m; ++j)
      for (std::int64_t i = 0; i < n; ++i) body(data[0] + i * strides[0] + j * strides[1] - first);
  };
  auto config = at::TensorIteratorConfig();
  config.set_check_mem_overlap(false).add_output(numbers).add_input(numbers);
  config.build().for_each(loop, /*grain_size=*/1);
}

}  // namespace lockstep
