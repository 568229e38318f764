// The cross entropy of logits whose classes are sharded over ranks.
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
  std::int64_t ignore_index = -100;  // Targets that are ignored.

  // at::Reduction::Mean, over the targets that are not ignored; Sum; or None.
  at::Reduction::Reduction reduction = at::Reduction::Mean;
};

// Returns torch.nn.functional.cross_entropy() of the whole logits, on each rank.
// `logits` is [N, C_rank], this rank's classes; rank 0 has the first ones. C_rank may differ
// between ranks and may be 0. `target` is [N], int64, equal on all ranks; classes are counted over
// all ranks.
// forward sends 3 N numbers (the largest logit, the sum of exponentials and the target's logit);
// backward() sends nothing. For float16 and bfloat16 it computes in float32. The result has the
// type of `logits`; under autocast float32, as LibTorch's losses. It has N elements without a
// reduction, otherwise no dimension.
// Blocking: collective over `group`.
// Errors: misuse, on all ranks, for a target that is neither a class nor ignore_index, and for
// other shapes and types. Mismatch, on all ranks, if targets differ: each call compares their
// digests. Those of ProcessGroup.
LOCKSTEP_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                      const ProcessGroup& group,
                                      const CrossEntropyOptions& options = {});

}  // namespace lockstep
