// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/global_microbatch.h"

#include <cstdint>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// As LibTorch's allocator aligns.
bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0;
}

}  // namespace

at::Tensor GlobalMicrobatch::of(const at::Tensor& rows) const {
  require(rows.defined() && rows.dim() > 0, "GlobalMicrobatch::of: there are no rows");
  const int own = count / ranks;
  require(rows.size(0) % own == 0 && rows.size(0) > 0, [&] {
    return "GlobalMicrobatch::of: " + std::to_string(rows.size(0)) +
           " rows cannot be cut into this rank's " + std::to_string(own) + " microbatches of " +
           std::to_string(count) +
           ": choose another batch size, and drop the last batch of an epoch if it is smaller";
  });
  const auto format = rows.suggest_memory_format();
  const at::Tensor part = rows.slice(0, index / ranks, {}, own).contiguous(format);
  // A single row counts as contiguous with any row stride: copied, too.
  return is_aligned(part) && part.size(0) > 1 ? part : part.clone(format);
}

}  // namespace lockstep
