// Tensors in a CUDA device's memory: the device of a rank, and the device of a Buffer.
//
//   model->to(local_device(world));
//
// Built without CUDA: the code asks LibTorch at run time, so any build of LibTorch will do.
//
// Thread safety: every function may be called from any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/base/api.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// The CUDA device of this rank: number local_rank() modulo the number of devices. NCCL refuses two
// ranks on one device.
// Errors: unsupported if LibTorch has no CUDA or the host has no device.
LOCKSTEP_API c10::Device local_device(const ProcessGroup& group);

// Marks `buffer`, which holds the elements of `tensor`, as memory of the tensor's device, ordered
// in this thread's current stream. LibTorch does not reuse the memory before the work that is in
// that stream by then is done.
void set_device(Buffer& buffer, const at::Tensor& tensor);

}  // namespace lockstep
