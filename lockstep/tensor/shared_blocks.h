// Which memory of this process is one and the same for all ranks of the host, so that what writes
// to tensors there, as if they were its own, can be refused.
//
// Thread safety: all of it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/registered_memory.h"

namespace lockstep {

// The same memory, known as such a block until the last handle of it is gone.
RegisteredMemory shared_block(RegisteredMemory memory);

// Whether the tensor's elements lie in one.
bool lies_in_shared_block(const at::Tensor& tensor);

}  // namespace lockstep
