// An MPI program: rank 0 prints the sum of the ranks and the names of their hosts.

// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <array>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  using Name = std::array<char, MPI_MAX_PROCESSOR_NAME>;
  Name name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  std::vector<Name> names(rank == 0 ? static_cast<std::size_t>(size) : 0);
  MPI_Gather(name.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names.data(), MPI_MAX_PROCESSOR_NAME,
             MPI_CHAR, 0, MPI_COMM_WORLD);
  int sum = 0;
  MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("%d over", sum);
    for (const Name& each : names) std::printf(" %s", each.data());
    std::printf("\n");
  }
  MPI_Finalize();
}
