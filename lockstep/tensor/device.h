// Tensors in a CUDA device's memory: which device a rank takes, and what a Buffer says of it.
//
//   model->to(local_device(world));
//
// Built without CUDA: LibTorch is asked at run time, whichever it is.
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

// The CUDA device of this rank: that of number local_rank(), counted round where a host has more
// ranks than devices, which NCCL then refuses.
// Errors: unsupported when LibTorch has no CUDA, or there is no device here.
LOCKSTEP_API c10::Device local_device(const ProcessGroup& group);

// Makes `buffer`, the elements of `tensor`, one of its device, in the order of this thread's
// current stream. The memory is not used for another tensor before what that stream has by then is
// done.
void set_device(Buffer& buffer, const at::Tensor& tensor);

}  // namespace lockstep
