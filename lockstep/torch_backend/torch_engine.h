// The engine "torch" between hosts: the Gloo inside LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::torch_backend {

// Registers the engine. Requires the GIL. Does nothing if PyTorch was built without Gloo.
void bring_torch_engine();

}  // namespace lockstep::torch_backend
