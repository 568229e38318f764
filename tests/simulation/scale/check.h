// Checks of the simulation of scale.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::simulation {

// Prints each violation. Returns the exit code: 0 without one.
int check_scale();

}  // namespace lockstep::simulation
