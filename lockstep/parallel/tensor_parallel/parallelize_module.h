// Tensor parallelism: cuts a model over the ranks of a group.
//
//   torch::manual_seed(0);                                  // All ranks make the whole model,
//   auto gpt = std::make_shared<Gpt>(options);
//   lockstep::parallelize_module(*gpt, mesh["tp"], {        // and each keeps its part.
//       {"transformer.h.*.mlp.c_fc", lockstep::ColwiseParallel()},
//       {"transformer.h.*.mlp.c_proj", lockstep::RowwiseParallel()},
//   });
//
// As torch.distributed.tensor.parallel.parallelize_module(), with full names instead of nested
// calls. Call it before you construct optimizers and DistributedDataParallel.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/parallel_layer.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// How each named layer is cut. Dot-separated parts of names may be patterns of fnmatch(), such as
// "*", "?" or "[0-9]".
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

struct ParallelizeOptions {
  // Allows a group of several hosts. Their network usually makes each layer too slow.
  bool across_hosts = false;

  // Compares the inputs that all ranks of a cut Linear or Embedding must share, in calls 1, 2, 4, 8
  // and so on. Unequal inputs are an Error. A comparison costs an all_gather of at most 8 KiB. On a
  // device it also waits for the stream, which a captured graph does not allow.
  bool check_inputs = true;
};

// Cuts every layer that `plan` names over `group`. Each must be a lockstep::nn layer or, in a
// Sequential, a torch::nn Linear, Embedding, LayerNorm or Dropout. A lockstep::nn layer with the
// same parameters replaces a torch::nn layer. Afterwards, forward() of lockstep::nn layers in
// `module` throws misuse for an input of a wrong width, with the cut layer that probably produced
// the input.
// Blocking: collective over `group`.
// Errors, on all ranks, before any change: misuse for a pattern without a layer, and for several
// hosts without across_hosts. Misuse for a layer that two patterns name, that is cut already, that
// cannot be cut in this style, or whose sizes do not divide. Misuse for parameters with gradients,
// in a DistributedDataParallel, or with a pending backward(). Mismatch if ranks' plans, shapes or
// parameters differ.
LOCKSTEP_API void parallelize_module(torch::nn::Module& module, const ProcessGroup& group,
                                     const ParallelPlan& plan,
                                     const ParallelizeOptions& options = {});

}  // namespace lockstep
