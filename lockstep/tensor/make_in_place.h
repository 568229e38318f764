// Makes a module so that its tensors lie in given memory, each from the moment when it exists: the
// memory of a whole module is never needed beside it.
//
// The module is made twice. First on the meta device, which shows which operator makes each tensor;
// then with values, as ever, except that the results of these operators get the storages of their
// places. So random numbers and whatever the module's constructor does are the same as in a module
// that is made elsewhere, bit for bit.
//
// The memory of a place may come and go (touched_tensors.h): an operator of the constructor that
// uses a tensor touches its place. So may one that comes back to a tensor which has left.

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

// Gives `places` the values of the tensors of the same names in the module that `make` makes. A
// tensor whose making cannot be followed, for example a part of a larger one, or whose place is on
// a device or has other strides, is copied at the end. At any time at most one of the others lies
// elsewhere. Errors: misuse, naming them, if the tensors of the module are not `places`, and if
// `make` makes them in another way when it is called again; some values are then written.
void make_in_place(const MakeModule& make, const NamedTensors& places);

}  // namespace lockstep
