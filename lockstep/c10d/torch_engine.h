// The engine "torch" between hosts, which is the Gloo inside LibTorch: a Python program needs no
// other library for several hosts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::c10d {

// Makes the engine known. With the GIL. Does nothing where PyTorch was built without Gloo.
void bring_torch_engine();

}  // namespace lockstep::c10d
