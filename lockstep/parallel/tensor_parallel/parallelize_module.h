// Cuts a model over the ranks of a group: tensor parallelism.
//
//   torch::manual_seed(0);                                  // All ranks make the whole model,
//   auto gpt = std::make_shared<Gpt>(options);
//   lockstep::parallelize_module(*gpt, mesh["tp"], {        // and each keeps its part.
//       {"transformer.h.*.mlp.c_fc", lockstep::ColwiseParallel()},
//       {"transformer.h.*.mlp.c_proj", lockstep::RowwiseParallel()},
//   });
//
// As torch.distributed.tensor.parallel.parallelize_module(), with whole names for the nested calls.
// Call it before optimizers and DistributedDataParallel are made; the latter averages over another
// dimension of the mesh.

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

// Names of layers, and how each is cut. Each part of a name between dots may be a pattern of
// fnmatch(): "*" matches any text without a dot, "?" any character, "[0-9]" one of these.
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;

struct ParallelizeOptions {
  // Tensor parallel layers communicate twice each: usually too much for a network.
  bool across_hosts = false;

  // Compares the whole inputs of each Linear and Embedding over the ranks, at its calls 1, 2, 4, 8
  // and so on: different batches are an Error. Costs an all_gather of at most 8 KiB there, and on a
  // device a wait for its stream, which a captured graph does not allow.
  bool check_inputs = true;
};

// Cuts every layer that `plan` names over `group`. Each layer is a lockstep::nn one, or a
// torch::nn::Linear, Embedding or LayerNorm in a torch::nn::Sequential, where it is exchanged for a
// lockstep::nn layer with the same parameters.
// Blocking: collective over `group`.
// Errors, on all ranks, with everything that is wrong, before anything is changed: misuse for a
// pattern without a layer; for a layer that two patterns name or that is cut already, that cannot
// be cut in this style, or whose sizes do not divide; for parameters that have gradients or are in
// use, by DistributedDataParallel or by a pass that waits for backward(); and for a group of
// several hosts without across_hosts. Mismatch for plans, shapes or parameters that differ between
// ranks. Afterwards, forward() of all lockstep::nn layers in `module`, cut or not, throws misuse
// for an input of a wrong width, and names the cut layer that it probably came from.
LOCKSTEP_API void parallelize_module(torch::nn::Module& module, const ProcessGroup& group,
                                     const ParallelPlan& plan,
                                     const ParallelizeOptions& options = {});

}  // namespace lockstep
