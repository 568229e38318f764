// Functions that cut layers share: parts of parameters, and placements of activations.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/nn/layers.h"

namespace lockstep::nn {

// Why `ranks` does not divide each of the `segments` equal parts of `size` (`what`:
// "out_features"), with the next sizes that fit; empty if it does.
std::string mismatch_of(const char* what, std::int64_t size, std::int64_t segments, int ranks);

// "ColwiseParallel cannot cut a LayerNorm".
std::string cannot_cut(const ParallelStyle& style, const char* layer);

// For a layer whose parameters stay whole: only SequenceParallel fits.
std::string mismatch_of_whole(const ParallelStyle& style, const char* layer);

// Keeps this rank's part of `parameter`, cut along `dim`: its parts of all `segments`, joined.
// Returns their layout in the whole.
ParameterLayout cut_parameter(at::Tensor& parameter, std::int64_t dim, std::int64_t segments,
                              const ProcessGroup& group);

// The whole activation on each rank, for use with parts of weights. `placement`: of `input`.
// backward() sums over the ranks.
at::Tensor enter(const at::Tensor& input, Placement placement, const CutTo& cut);

// The sum of `partial` over the ranks, in this `placement`.
at::Tensor leave(const at::Tensor& partial, Placement placement, const CutTo& cut);

// A whole parameter, or an undefined one, for use with parts of activations. backward() sums over
// the ranks.
at::Tensor for_parts(const at::Tensor& parameter, const char* what, const CutTo& cut);

// The layer's name, for Errors. Refers to `cut`.
CallOptions label_of(const CutTo& cut);

// Compares a whole input of a layer over the ranks, at calls 1, 2, 4, 8 and so on. Integers are
// compared by digest, other numbers at up to 1,024 places, with a tolerance of 1/32 for rounding.
// Collective at these calls: one all_gather of at most 8 KiB and, on a device, a wait for its
// stream.
// Errors: mismatch, on all ranks, also for shapes, naming the layer and the ranks that differ.
void require_equal_inputs(const at::Tensor& input, const CutTo& cut, std::uint64_t call);

}  // namespace lockstep::nn
