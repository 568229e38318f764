// Registered memory for the gradients of a fully sharded module, before they are averaged.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Bytes of each buffer for a large gradient: for the largest two units, because one's gradients
// arrive while the other's are averaged.
std::vector<std::size_t> rooms_for_two_units(const NamedTensors& parameters,
                                             const BucketAssignment& units);

// A rank's bytes: these buffers, with several ranks, and all small gradients. `patterns`:
// FullyShardedOptions::units. Errors: as units_of().
std::size_t bytes_of_unit_gradients(const NamedTensors& parameters,
                                    const std::vector<std::string>& patterns, int ranks);

}  // namespace lockstep
