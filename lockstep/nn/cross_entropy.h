// The cross entropy of logits that are cut along the classes.
//
//   const auto logits = model(tokens);                      // [N, T, vocabulary / tp]
//   lockstep::cross_entropy(logits.flatten(0, 1), next.flatten(), mesh["tp"]).backward();

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // Targets without a loss.

  // at::Reduction::Mean, over the targets that are not ignored; Sum; or None.
  at::Reduction::Reduction reduction = at::Reduction::Mean;
};

// torch.nn.functional.cross_entropy() of the whole logits, on each rank. `logits` is [N, C_rank],
// this rank's classes: rank 0 has the first ones. The numbers of classes may differ between ranks,
// and may be 0. `target` is [N], int64, of classes counted over all ranks; equal on all ranks.
// Forward sends 3 N numbers (the largest logit; the sum of exponentials and the target's logit),
// backward() sends nothing. The computation is in float32 for float16 and bfloat16. The result has
// the type of `logits`, and under autocast float32, as LibTorch's losses. Without a reduction it
// has N elements, and otherwise no dimension.
// Blocking: collective over `group`.
// Errors: misuse, on all ranks, for a target that is neither a class nor ignore_index, and for
// other shapes and types. Mismatch, on all ranks, for targets that differ: each call compares their
// digests. Those of ProcessGroup.
LOCKSTEP_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                      const ProcessGroup& group,
                                      const CrossEntropyOptions& options = {});

}  // namespace lockstep
