// All ranks of the job, as MPI knows them: the communicator that others are made of.
//
// It is a duplicate of what the program has handed over, or of MPI_COMM_WORLD, so that our traffic
// and the program's cannot meet; it and what is made of it report errors instead of ending the
// process.
//
// Errors: plugin::Failed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/engine/mpi/library.h"

namespace lockstep::mpi {

// `original_world` is an MPI_Comm*, or null for MPI_COMM_WORLD. The first call for a communicator
// is collective over it, and from one thread at a time; MPI has been started. What it returns lives
// as long as the process.
const MPI_Comm* duplicate_world(const void* original_world);

// What duplicate_world() has returned, from any thread.
// Errors: bug for null.
MPI_Comm duplicated_world(const void* world);

int rank_in(MPI_Comm communicator);
int size_of(MPI_Comm communicator);

}  // namespace lockstep::mpi
