// Common functions of cut layers: parts of parameters, placements of activations.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/nn/layers.h"

namespace lockstep::nn {

// Why the `segments` equal parts of `size` cannot be cut evenly over `ranks`, and which sizes can;
// empty if they can. `what` names the size: "out_features".
std::string mismatch_of(const char* what, std::int64_t size, std::int64_t segments, int ranks);

std::string cannot_cut(const ParallelStyle& style, const char* layer);

// For whole parameters: only SequenceParallel fits.
std::string mismatch_of_whole(const ParallelStyle& style, const char* layer);

// Keeps this rank's part of `parameter` along `dim`: its parts of all `segments`, joined. Returns
// their layout.
ParameterLayout cut_parameter(at::Tensor& parameter, std::int64_t dim, std::int64_t segments,
                              const ProcessGroup& group);

// The whole activation, for use with parts of weights. `placement`: of `input`. backward() sums
// over ranks.
at::Tensor enter(const at::Tensor& input, Placement placement, const CutTo& cut);

// Sums `partial` over the ranks, in this placement.
at::Tensor leave(const at::Tensor& partial, Placement placement, const CutTo& cut);

// A whole parameter, or an undefined one, for use with parts of activations. backward() sums over
// ranks.
at::Tensor for_parts(const at::Tensor& parameter, const char* what, const CutTo& cut);

// The layer's name. `cut` outlives the result.
CallOptions label_of(const CutTo& cut);

// With CutTo::checks_inputs, at calls 1, 2, 4, 8 and so on, compares a layer's whole input over the
// ranks. Integers are compared by digest, other numbers at up to 1,024 places, with the tolerance
// (number + root mean square) / 32. Collective at these calls: one all_gather of at most 8 KiB and,
// on a device, a wait for its stream. Errors: mismatch, on all ranks, also for shapes, naming the
// layer and the ranks that differ.
void require_equal_inputs(const at::Tensor& input, const CutTo& cut, std::uint64_t call);

}  // namespace lockstep::nn
