// Measures one layer: time and memory of forward, backward and the optimizer's step.
//
// Thread safety: none. Blocking: as the layer, which may communicate.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/toolkit/plan/model_profile.h"
#include "lockstep/toolkit/plan/plan.h"

namespace lockstep::plan {

using pipeline::PassedValue;

struct MeasuredLayer {
  LayerSample sample;  // Without rows.
  PassedValue output;
};

// Measures only times, without changing the allocator.
MeasuredLayer time_layer(const std::function<PassedValue(const PassedValue&)>& forward,
                         const std::vector<at::Tensor>& parameters, const PassedValue& input,
                         bool needs_gradient);

// `needs_gradient`: of floating-point inputs. Leaves no gradients.
MeasuredLayer measure_layer(const std::function<PassedValue(const PassedValue&)>& forward,
                            const std::vector<at::Tensor>& parameters, const PassedValue& input,
                            bool needs_gradient);

// Bytes of `input` that only the layer holds until backward. `kept_bytes`: LayerSample's.
double held_input(const std::function<PassedValue(const PassedValue&)>& forward,
                  const PassedValue& input, double kept_bytes);

// Sets the fields of `part` for parameters, gradients and optimizer. Overwrites `parameters`.
void measure_optimizer(LayerPart& part, const std::vector<at::Tensor>& parameters,
                       const PlanOptions& options);

// The shortest of several runs of `act`, in seconds.
double shortest_time(const std::function<void()>& act);

}  // namespace lockstep::plan
