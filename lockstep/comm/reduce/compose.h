// Composes collectives that a backend or an engine lacks from all_gather and all_to_all:
// docs/algorithms.md.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/core/backend.h"

namespace lockstep::comm {

// Starts and completes an all_gather or all_to_all, with counts.
using NativeCall = std::function<void(const Collective& collective)>;

// All `size` ranks have entered `collective`. Errors: as `native`; bug for an operation that cannot
// be composed.
void compose(const NativeCall& native, const Collective& collective, int rank, int size);

}  // namespace lockstep::comm
