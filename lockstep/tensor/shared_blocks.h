// A registry of memory that all ranks of the host share. Code that writes to tensors as its own can
// refuse tensors that lie there.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/buffer.h"

namespace lockstep {

// Registers `memory` and returns a new handle to it. The block stays registered until the last
// handle is released.
RegisteredMemory shared_block(RegisteredMemory memory);

// Whether the tensor's elements lie in a registered block.
bool lies_in_shared_block(const at::Tensor& tensor);

}  // namespace lockstep
