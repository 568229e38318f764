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
  std::int64_t ignore_index = -100;

  // Mean, over the targets that are not ignored; Sum; or None.
  at::Reduction::Reduction reduction = at::Reduction::Mean;
};

// Returns torch.nn.functional.cross_entropy() of the whole logits, on each rank.
// `logits` is [N, C_rank], this rank's classes; rank 0 has the first ones. C_rank may differ
// between ranks and may be 0. `target` is [N], int64, equal on all ranks, with indices over all
// ranks' classes.
// forward() sends 3 N + 1 numbers, backward() none. float16 and bfloat16 are computed in float32.
// Under autocast, their result is float32; otherwise it has the type of `logits`. Without a
// reduction it has N elements, otherwise no dimension.
// Blocking: collective over `group`.
// Errors: misuse for other shapes and types. On all ranks, misuse for a target that is neither a
// class nor ignore_index, and mismatch for different targets. In backward(), unsupported for
// create_graph. Also ProcessGroup's.
LOCKSTEP_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                      const ProcessGroup& group,
                                      const CrossEntropyOptions& options = {});

}  // namespace lockstep
