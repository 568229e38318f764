// Collectives that a backend does not do itself, made of all_gather and all_to_all, which every
// backend has. docs/algorithms.md counts their steps and bytes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/backend.h"

namespace lockstep {

// Completes `collective`, which all `size` ranks have entered, of which this is `rank`.
// Errors: as the backend's; mismatch when a rank has left the common order meanwhile.
void compose(Backend& backend, const Collective& collective, int rank, int size);

}  // namespace lockstep
