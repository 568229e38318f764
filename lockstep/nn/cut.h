// What the layers do alike when they are cut: parts of parameters, and activations that change
// their placement.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/nn/layers.h"

namespace lockstep::nn {

// Empty, or why `segments` equal parts of `size`, each cut over `ranks`, are no whole numbers, with
// the next sizes that are. `what` is "out_features".
std::string misfit_of(const char* what, std::int64_t size, std::int64_t segments, int ranks);

// "ColwiseParallel cannot cut a LayerNorm".
std::string cannot_cut(const ParallelStyle& style, const char* layer);

// Of a layer whose parameters, if any, stay whole: SequenceParallel alone fits it.
std::string misfit_of_whole(const ParallelStyle& style, const char* layer);

// Leaves this rank's part of `parameter`, cut along `dim`: the part of each of `segments` equal
// parts, one behind the other. Returns how it lies in the whole.
ParameterLayout cut_parameter(at::Tensor& parameter, std::int64_t dim, std::int64_t segments,
                              const ProcessGroup& group);

// A whole activation on each rank, for use by parts of weights, from an `input` that lies as
// `placement` says. backward() sums over the ranks.
at::Tensor enter(const at::Tensor& input, Placement placement, const CutTo& cut);

// The sum of all ranks' `partial`, placed as `placement` says.
at::Tensor leave(const at::Tensor& partial, Placement placement, const CutTo& cut);

// A whole parameter, for use on parts of activations. backward() sums over the ranks. Undefined
// ones stay so.
at::Tensor for_parts(const at::Tensor& parameter, const char* what, const CutTo& cut);

// The layer's name, for Errors of its collectives. Refers to `cut`.
CallOptions label_of(const CutTo& cut);

// Compares a whole input of a layer over the ranks, at calls 1, 2, 4, 8 and so on of the layer:
// integers exactly, by their digest; other numbers in up to 1,024 places, where they may differ by
// a thirty-second, as rounding does not. Such a call costs one all_gather of at most 8 KiB, and on
// a device a wait for its stream. Collective over cut.group at these calls.
// Errors: mismatch, on all ranks, naming the layer and the ranks that differ, also for shapes.
void require_equal_inputs(const at::Tensor& input, const CutTo& cut, std::uint64_t call);

}  // namespace lockstep::nn
