// A program that uses MPI itself. Its first process serves the others. The others pass a
// communicator of their own to Lockstep, and are its ranks as in rank_of_hosts.h.

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "lockstep/comm/engine/mpi/library.h"  // <mpi.h>
#include "tests/hosts/rank_of_hosts.h"

int main(int argc, char** argv) {
  int level = 0;
  int rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, rank, &part);
  int code = 0;
  if (rank != 0) code = lockstep::test::rank_of_hosts(argc, argv, {.mpi_communicator = &part});
  MPI_Comm_free(&part);

  // The program's own MPI still works afterwards.
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("served sum=%d\n", sum);
    std::fflush(stdout);
  }
  MPI_Finalize();
  return code;
}
