// Constructs a module in given memory, without needing the memory of a second module.
//
// The module is constructed twice. The first construction, on the meta device, records which
// operator creates each tensor. In the second one, with values, the results of these operators get
// the storages of their places. Random numbers and side effects of the constructor are therefore
// the same as in an ordinary construction, bit for bit.
//
// The memory of a place may be attached and detached (touched_tensors.h): an operator of the
// constructor that uses a tensor touches its place, also if the memory was detached meanwhile.

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
// A tensor is copied at the end if its construction cannot be followed (for example a part of a
// larger one), or its place is on a device or has other strides. Of the other tensors, at most one
// at a time is elsewhere.
// Errors: misuse, naming them, if the tensors of the module are not `places`, or if the second
// construction differs from the first; some values are then written.
void make_in_place(const MakeModule& make, const NamedTensors& places);

}  // namespace lockstep
