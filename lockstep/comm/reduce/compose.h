// Composes collectives that a backend or an engine lacks from all_gather and all_to_all, which all
// of them have. docs/algorithms.md counts their steps and bytes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/comm/core/backend.h"

namespace lockstep::comm {

// Starts and completes an all_gather or all_to_all, with counts.
using NativeCall = std::function<void(const Collective& collective)>;

// Completes `collective`, which all `size` ranks have entered. `rank` is this rank. Errors: as
// `native`; bug for an operation that cannot be composed, such as all_gather.
void compose(const NativeCall& native, const Collective& collective, int rank, int size);

}  // namespace lockstep::comm
