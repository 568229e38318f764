// Measures each kind of layer, whole and cut over ranks of this host.
//
// Thread safety: none. Blocking: collective.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "lockstep/toolkit/plan/plan.h"

namespace lockstep::plan {

// This rank's measurements. Errors: as plan_if_asked().
ModelProfile profile_layers(const LayerList& layers, const pipeline::PassedValue& batch,
                            const plan::CutLossOf& loss_of, const PlanOptions& options,
                            const ProcessGroup& world);

}  // namespace lockstep::plan
