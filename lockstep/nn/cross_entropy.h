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
  std::int64_t ignore_index = -100;  // Targets to ignore.

  // Mean, over the targets that are not ignored; Sum; or None.
  at::Reduction::Reduction reduction = at::Reduction::Mean;
};

// Returns torch.nn.functional.cross_entropy() of the whole logits, on each rank.
// `logits` is [N, C_rank], this rank's classes; rank 0 has the first ones. C_rank may differ
// between ranks and may be 0. `target` is [N], int64, equal on all ranks, with indices over the
// classes of all ranks.
// The call sends 3 N numbers; backward() sends nothing. float16 and bfloat16 are computed in
// float32. The result has the type of `logits`; under autocast float32. Without a reduction it has
// N elements, otherwise no dimension.
// Blocking: collective over `group`.
// Errors: misuse, on all ranks, for a target that is neither a class nor ignore_index, and for
// other shapes and types. Mismatch, on all ranks, for different targets. Those of ProcessGroup.
LOCKSTEP_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                      const ProcessGroup& group,
                                      const CrossEntropyOptions& options = {});

}  // namespace lockstep
