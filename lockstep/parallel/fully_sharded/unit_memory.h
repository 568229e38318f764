// Registered memory for the gradients of a fully sharded module, before they are averaged.
//
// Thread safety: none is needed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Bytes of each buffer for a large gradient: those of the largest two units, because the next
// unit's gradients arrive while one unit is averaged.
std::vector<std::size_t> rooms_for_two_units(const NamedTensors& parameters,
                                             const BucketAssignment& units);

// Bytes of a rank: these buffers, which a single rank does not have, and all small gradients. The
// units are those of `patterns` (FullyShardedOptions::units). Errors: as units_of().
std::size_t bytes_of_unit_gradients(const NamedTensors& parameters,
                                    const std::vector<std::string>& patterns, int ranks);

}  // namespace lockstep
