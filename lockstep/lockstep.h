// Includes every public header of Lockstep and LibTorch's umbrella header.
// Programs without LibTorch include lockstep/comm/comm.h instead. Including single headers compiles
// faster.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/comm.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/image_datasets.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/convert_sync_batchnorm.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/parallel_layer.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/observe/drift_check.h"
#include "lockstep/observe/memory_report.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/one_copy/shared_optimizer.h"
#include "lockstep/parallel/pieces/piece.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/tensor_parallel/check_parallel.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/state.h"
#include "lockstep/tensor/state_types.h"
#include "lockstep/tensor/tensor_lists.h"
#include "lockstep/tensor/torch_store.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/training_state.h"
