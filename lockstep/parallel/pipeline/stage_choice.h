// A pipeline's order and cut into stages, equal on all ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/layer_list.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"
#include "lockstep/parallel/pipeline/whole_model.h"

namespace lockstep::parallel {

struct StageChoice {
  PipelineOrder order;
  WholeModel whole;
  std::vector<int> first_layers;  // By stage.

  int stage_of(std::size_t layer) const;
  int rank_of(std::size_t layer) const;  // In the pipeline.
};

// Collective over `group` and the groups of options and plans. Errors: as Pipeline's constructor.
StageChoice choose_stages(const LayerList& layers, const ProcessGroup& group,
                          const PipelineOptions& options);

// Collective. If `act` throws on some ranks, the others throw Error(aborted) with the first one's
// text.
void on_all_ranks(const ProcessGroup& group, const std::function<void()>& act);

}  // namespace lockstep::parallel
