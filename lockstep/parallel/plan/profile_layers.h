// Measures each kind of layer of a model, whole and cut over ranks of this host.
//
// Thread safety: none. Blocking: collective.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/plan/model_profile.h"
#include "lockstep/parallel/plan/plan.h"

namespace lockstep::parallel {

// As this rank measured it. Errors: as plan_if_asked().
ModelProfile profile_layers(const LayerList& layers, const pipeline::PassedValue& batch,
                            const plan::CutLossOf& loss_of, const PlanOptions& options,
                            const ProcessGroup& world);

}  // namespace lockstep::parallel
