// Constructs a module in given memory, without the memory of a second module.
//
// The module is constructed twice. The first time, on the meta device, records which operator
// creates each tensor. The second time, with values, these results get the storages of their
// places. Random numbers and side effects are those of an ordinary construction.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

// Gives `places` the values of the tensors of the same names in the module that `make` constructs.
// A tensor is copied at the end if its construction cannot be followed, or if its place is on a
// device or has other strides. At most one other tensor at a time is outside its place. Places may
// be watched tensors (touched_tensors.h): the constructor's operators then notify the watcher.
// Errors: misuse, naming them, if the module's tensors are not `places`. Also if the second
// construction differs from the first; some values are then written.
void make_in_place(const MakeModule& make, const NamedTensors& places);

}  // namespace lockstep
