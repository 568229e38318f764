// The MPI library loaded in this process: its version, start, end and errors, and the communicator
// of all ranks of the job.
//
// Thread safety: any thread may call any function; start() one thread at a time.
// Blocking: start() waits for the other ranks as MPI_Init_thread() does.
// Errors: plugin::Failed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

// Leaves out MPI's former C++ classes, whose symbols are in a library that is not loaded.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <string>

namespace lockstep::comm::mpi {

// Throws an error with MPI's own text if `result` of `function` is not MPI_SUCCESS.
void check(int result, const char* function);

// Returns text such as "Open MPI v4.1.4, package: ...". Works before MPI is started.
// Errors: unsupported when the loaded MPI is not the implementation whose mpi.h this plugin was
// compiled with. Its handles would differ.
std::string version();

// Starts MPI unless the program has. Checks that it has all ranks of the launcher and
// MPI_THREAD_MULTIPLE. If started here, MPI ends when the process exits with code 0 and no
// Unfinished is left.
// Errors: unsupported; misuse when the program has ended MPI.
void start();

// An object that must finish before MPI may end in order. MPI_Finalize() waits for all ranks, and
// would wait forever for a rank that aborted. Such a rank exits without it, so the launcher ends
// the job.
class Unfinished {
 public:
  Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Call once. An object destroyed without it stays unfinished.
  void finish();
};

// The MPI communicator of all ranks of the job, from which others are made. It duplicates the
// program's communicator, or MPI_COMM_WORLD, to separate Lockstep's traffic from the program's. It
// and its children report errors instead of ending the process. `original_world` is an MPI_Comm*,
// or null for MPI_COMM_WORLD. MPI must be started. The first call for a communicator is collective
// over it; one thread at a time. The result lives as long as the process.
const MPI_Comm* duplicate_world(const void* original_world);

// Returns the communicator behind duplicate_world()'s result, from any thread. Errors: bug for
// null.
MPI_Comm duplicated_world(const void* world);

int rank_in(MPI_Comm communicator);
int size_of(MPI_Comm communicator);

}  // namespace lockstep::comm::mpi
