// Includes lockstep/lockstep.h and the public headers of Lockstep::toolkit. The toolkit has readers
// of data formats, learning rate schedules, LoRA, averages of weights, pruning, compiled steps, the
// run log and plan. Including single headers compiles faster.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/lockstep.h"
#include "lockstep/toolkit/average/averaged_model.h"
#include "lockstep/toolkit/compiled/compiled_module.h"
#include "lockstep/toolkit/datasets/arrays/array_file.h"
#include "lockstep/toolkit/datasets/image_datasets.h"
#include "lockstep/toolkit/datasets/images/image_folder.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"
#include "lockstep/toolkit/datasets/tokens/token_file.h"
#include "lockstep/toolkit/lora/lora.h"
#include "lockstep/toolkit/plan/plan.h"
#include "lockstep/toolkit/prune/channel_pruner.h"
#include "lockstep/toolkit/prune/gradual_pruner.h"
#include "lockstep/toolkit/prune/pruning_masks.h"
#include "lockstep/toolkit/prune/pruning_plan.h"
#include "lockstep/toolkit/run_log/run_log.h"
#include "lockstep/toolkit/schedules/cyclic_schedules.h"
#include "lockstep/toolkit/schedules/lr_scheduler.h"
#include "lockstep/toolkit/schedules/per_group.h"
#include "lockstep/toolkit/schedules/reduce_lr_on_plateau.h"
#include "lockstep/toolkit/schedules/scaled_learning_rate.h"
#include "lockstep/toolkit/schedules/schedules.h"
