// The state of a module: its parameters and buffers, under their names in it.
//
// Buffers are rank 0's, as those of a BatchNorm differ between ranks. A tensor that a module has
// under two names is saved under both.
//
// Errors: misuse, naming what does not fit, for tensors that the module lacks, that were not saved,
// or that have another type or shape; mismatch, naming both, for unequal ones that are one in it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Lifetime: `module` outlives it.
// Errors, of wanted(): misuse for parameters that all ranks of a host share, which each would
// write.
LOCKSTEP_API std::unique_ptr<Stateful> module_state(torch::nn::Module& module);

// What that does, for what holds a module in a way of its own.
StateDict state_of(const torch::nn::Module& module);
void require_fits(const torch::nn::Module& module, const StateDict& saved);
// `saved` read to where the module has its tensors, as far as these lie in the CPU's memory row by
// row.
StateRequest wanted_in_place(const torch::nn::Module& module, const StateDict& saved);

// Does nothing to tensors that were read in place but tell autograd.
void copy_into(const torch::nn::Module& module, const StateDict& state);

}  // namespace lockstep
