// The MPI communicator of all ranks of the job, from which others are made.
//
// It is a duplicate of the program's communicator, or of MPI_COMM_WORLD, so that Lockstep's traffic
// and the program's are separate. It and its children report errors instead of ending the process.
//
// Errors: plugin::Failed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/engine/mpi/library.h"

namespace lockstep::mpi {

// `original_world` is an MPI_Comm*, or null for MPI_COMM_WORLD. MPI must be started. The first call
// for a communicator is collective over it; one thread at a time. The result lives as long as the
// process.
const MPI_Comm* duplicate_world(const void* original_world);

// Returns the communicator behind duplicate_world()'s result, from any thread. Errors: bug for
// null.
MPI_Comm duplicated_world(const void* world);

int rank_in(MPI_Comm communicator);
int size_of(MPI_Comm communicator);

}  // namespace lockstep::mpi
