// The MPI library in this process, and the communicator of all ranks.
//
// Thread safety: any thread; start() one at a time. Blocking: start() as MPI_Init_thread(), the
// first duplicate_world() as MPI_Comm_dup(). Errors: plugin::Failed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

// Leaves out MPI's former C++ classes, whose library is not loaded.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <string>

namespace lockstep::comm::mpi {

// Throws MPI's own text if `result` of `function` is not MPI_SUCCESS.
void check(int result, const char* function);

// Such as "Open MPI v4.1.4, package: ..."; also before MPI is started. Errors: unsupported when
// this plugin was compiled for another implementation, whose handles differ.
std::string version();

// Starts MPI unless the program has. Checks that it has all ranks of the launcher and
// MPI_THREAD_MULTIPLE. MPI started here ends when the process exits with code 0 and no Unfinished
// is left. Errors: unsupported; misuse when the program has ended MPI.
void start();

// MPI started here does not end while one is unfinished: MPI_Finalize() would wait forever for a
// rank that aborted.
class Unfinished {
 public:
  Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Call once, or the object stays unfinished.
  void finish();
};

// Duplicates `original_world`, an MPI_Comm* (null: MPI_COMM_WORLD), to separate Lockstep's traffic
// from the program's. The duplicate and its children report errors instead of ending the process.
// MPI must be started. The first call for a communicator is collective over it; one thread at a
// time. Lives as long as the process. Errors: misuse for MPI_COMM_NULL.
const MPI_Comm* duplicate_world(const void* original_world);

// `world` is duplicate_world()'s result. Errors: bug for null.
MPI_Comm duplicated_world(const void* world);

int rank_in(MPI_Comm communicator);
int size_of(MPI_Comm communicator);

}  // namespace lockstep::comm::mpi
