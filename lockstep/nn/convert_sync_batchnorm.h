// Making the batch norms of a module SyncBatchNorms.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Every lockstep::SyncBatchNorm in `module`, itself included, is synchronised over `group`, unless
// it was made with a group of its own, and learns its name. Every BatchNorm1d, 2d and 3d that is an
// element of a torch::nn::Sequential, at any depth, is replaced by one: of the same options and
// mode, sharing its tensors, so that an optimizer made before stays valid. Not collective, but for
// ranks to agree all must call it. As in Python: before DistributedDataParallel is made.
//
// Elsewhere C++ allows no exchange: a member of type BatchNorm2d is called by that type, and an
// element of a ModuleList or ModuleDict can be called only after a cast to it. So too for classes
// derived from these. A handle to a replaced module that the program has kept remains a plain
// BatchNorm of the same tensors: reach the new one through its Sequential.
//
// Errors: unsupported, with nothing changed, when there are such others, `module` itself among
// them; the message names them all.
LOCKSTEP_API void convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace lockstep
