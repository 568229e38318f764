// The state of an optimizer under its parameters' names. Sharded and plain optimizers have the same
// form: each loads the other's state, on any number of ranks. Each rank describes, requests and
// keeps only its own shards.
//
//   type                     "Adam", also for classes derived from it
//   param_groups             their number
//   param_groups.0.lr        and all other options (optimizer_options.h)
//   conv.weight.param_group
//   conv.weight.step         for each parameter that was stepped
//   conv.weight.exp_avg      a tensor, shaped as the parameter
//
// Loading replaces the options, and deletes the state of parameters without saved state.
//
// Thread safety: none. Errors: unsupported for an optimizer other than SGD, Adam, AdamW, Adagrad,
// RMSprop, LARS, LAMB and classes derived from these.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// `parameters` are the module's; the optimizer may step only some. A parameter with two names is
// saved under the first. `layouts` are the module's (layouts_of()): a parameter that is cut over
// ranks is saved and loaded as a whole. Neither this function nor the result's members are
// collective.
// Lifetime: `optimizer` outlives the result.
// Errors: misuse for a parameter without a name. Loading throws misuse, naming mismatches, for
// another kind of optimizer, other parameters or param groups, and options of other names or types.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::optim::Optimizer& optimizer,
                                                const NamedTensors& parameters,
                                                const Layouts& layouts = {});
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> optimizer_state(
    torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
    const Layouts& layouts = {}) {
  return state_of(optimizer, parameters, layouts);
}

}  // namespace lockstep
