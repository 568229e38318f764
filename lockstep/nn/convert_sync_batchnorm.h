// Converts the batch norms of a module to SyncBatchNorms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Synchronises every lockstep::SyncBatchNorm in `module`, itself included, over `group` and gives
// it its name. A layer that was made with a group of its own keeps that group.
// Replaces every BatchNorm1d, 2d and 3d that is an element of a torch::nn::Sequential, at any
// depth, by a SyncBatchNorm. The new layer has the same options and mode and shares the tensors, so
// existing optimizers stay valid. Not collective, but all ranks must call it. As in Python, call it
// before DistributedDataParallel is made.
//
// C++ allows no replacement elsewhere: a member of type BatchNorm2d is called by that type, and an
// element of a ModuleList or ModuleDict only after a cast to it. The same holds for classes derived
// from these. A handle that the program keeps to a replaced module remains a plain BatchNorm with
// the same tensors: reach the new layer through its Sequential.
//
// Errors: unsupported, with nothing changed, if `module` is or contains a batch norm that cannot be
// replaced; the message names all of them.
LOCKSTEP_API void convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace lockstep
