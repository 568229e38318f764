// Includes every public header of the core, Lockstep::lockstep, and LibTorch's umbrella header.
// lockstep/toolkit.h has Lockstep::toolkit too; lockstep/comm/comm.h is for programs without
// LibTorch. Including single headers compiles faster.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"  // First: it refuses an older C++ with one error.
// LibTorch:
#include <torch/torch.h>

#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/comm.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/observe/drift_check.h"
#include "lockstep/observe/memory_report.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/power_sgd.h"
#include "lockstep/parallel/local_steps/local_steps.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/replicate/noise_scale.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/parallel/tensor_parallel/check_parallel.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/function_module.h"
#include "lockstep/tensor/on_meta.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/tensor/tensor_lists.h"
#include "lockstep/tensor/torch_store.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/survival.h"
#include "lockstep/train/training_state.h"
