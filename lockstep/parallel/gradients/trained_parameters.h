// The parameters of a module that have gradients.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Returns those of `parameters` that require a gradient. A parameter with several names, such as
// the weights of a tied embedding, has one gradient: it is listed once, under its first name.
NamedTensors trained_parameters(NamedTensors parameters);

}  // namespace lockstep
