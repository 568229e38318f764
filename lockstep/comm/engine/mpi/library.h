// The MPI library that this process has loaded: what it is, its start, its end and its errors.
//
// Thread safety: every function may be called from any thread; start() from one at a time.
// Blocking: start() waits for the other ranks as MPI_Init_thread() does.
// Errors: plugin::Failed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

// MPI's former C++ classes: their symbols are in a library that nobody loads.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <string>

namespace lockstep::mpi {

// Turns what `function` of MPI returned into an error with MPI's own words; MPI_SUCCESS passes.
void check(int result, const char* function);

// Such as "Open MPI v4.1.4, package: ...". May be called before MPI is started.
// Errors: unsupported when the symbols are those of another implementation than the one whose mpi.h
// this plugin was compiled with, whose handles it would not understand.
std::string version();

// Starts MPI, unless the program has, and sees that it is as this engine needs it: of all ranks
// that the launcher has started, and with MPI_THREAD_MULTIPLE. When it was started here, it is
// ended when the process exits with code 0 and no Unfinished is left.
// Errors: unsupported; misuse when the program has ended MPI.
void start();

// What must end well before MPI may be ended in an orderly way, which waits for all ranks. The
// ranks would wait for ever for one that gave up: it leaves without, and so the launcher ends the
// job.
class Unfinished {
 public:
  Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Once. What is destroyed without stays unfinished.
  void finish();
};

}  // namespace lockstep::mpi
