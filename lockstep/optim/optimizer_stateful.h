// The state of an optimizer under the names of its parameters: what it remembers of each, and its
// options. It is the plain optimizer's also of a sharded one, so that either is loaded into the
// other, at any number of ranks; of that each rank describes, asks for and keeps its own shards
// alone.
//
//   type                     "Adam", also of lockstep::Adam and what derives from either
//   param_groups             how many
//   param_groups.0.lr        and all that the options serialise (optimizer_options.h)
//   conv.weight.param_group  of each parameter
//   conv.weight.step         of those that were stepped
//   conv.weight.exp_avg      a tensor, shaped as the parameter
//
// Options become the saved ones. Parameters of which nothing was saved are as if never stepped.
//
// Thread safety: none.
// Errors: unsupported, naming it, for an optimizer but SGD, Adam, AdamW, Adagrad, RMSprop and what
// derives from these.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// `parameters` are those of the module, of which the optimizer may step some; one that has two
// names goes by the first. Not collective, neither are the members of the result.
// Lifetime: `optimizer` outlives it.
// Errors: misuse for a parameter that has no name; wanted(): misuse, naming what does not fit, for
// the state of another kind of optimizer, of other parameters or param groups.
LOCKSTEP_API std::unique_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer,
                                                       const NamedTensors& parameters);

}  // namespace lockstep
