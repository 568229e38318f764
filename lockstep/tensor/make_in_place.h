// Constructs a module in given memory.
//
// The module is constructed twice. The first construction, on the meta device, records which
// operator creates each tensor. In the second one, these results get the storages of the given
// tensors. Operators on meta draw no random numbers; the constructor's side effects happen twice.

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

// Gives `places` the values of the equally named tensors of the module that `make` constructs. Then
// copies tensors that could not be made there, such as on a device or with other strides. Apart
// from these, at most one tensor at a time is outside its place. `places` may be watched
// (touched_tensors.h): the constructor's operators then notify the watcher. Errors: misuse, naming
// them, if the module's tensors are not `places`, or the second construction makes one at another's
// place. Some values may then be written.
void make_in_place(const MakeModule& make, const NamedTensors& places);

}  // namespace lockstep
