// The parameters of a module that have gradients.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Those of `parameters` that require one. A parameter with several names, such as the weights of a
// tied embedding, has one gradient: it is there once, under its first name.
NamedTensors trained_parameters(NamedTensors parameters);

}  // namespace lockstep
