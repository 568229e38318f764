// Open MPI's side of bench.py: as ours.cpp, in memory of malloc().

// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>

#include "bench/collectives/case.h"

namespace {

using bench::Case;
using Call = std::function<void()>;

const MPI_Comm world = MPI_COMM_WORLD;

Call call_of(const Case& work, int ranks, const bench::Memory& memory) {
  const auto [input, output] = memory;
  const int count = static_cast<int>(work.count());
  const int part = count / ranks;
  if (work.operation == "barrier") return [] { MPI_Barrier(world); };
  if (work.operation == "all_reduce") {
    return [=, in = input] { MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, world); };
  }
  if (work.operation == "broadcast") {
    return [=, in = input] { MPI_Bcast(in, count, MPI_FLOAT, 0, world); };
  }
  if (work.operation == "all_gather") {
    return [=, in = input, out = output] {
      MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
    };
  }
  if (work.operation == "reduce_scatter") {
    return [=, in = input, out = output] {
      MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world);
    };
  }
  if (work.operation == "all_to_all") {
    return [=, in = input, out = output] {
      MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
    };
  }
  throw std::invalid_argument("no operation " + work.operation);
}

void run(const std::vector<Case>& cases) {
  bench::Rank rank{};
  MPI_Comm_rank(world, &rank.rank);
  MPI_Comm_size(world, &rank.size);
  const bench::Memory memory = bench::allocate_any(bench::largest(cases));
  for (const Case& work : cases) {
    const Call call = call_of(work, rank.size, memory);
    MPI_Barrier(world);
    auto seconds = bench::time_batches(work, rank, memory, call);
    MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(seconds.size()), MPI_DOUBLE,
                  MPI_MAX, world);
    if (rank.rank == 0) bench::print_figure(work, std::move(seconds));
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run(bench::parse_cases(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "bench_collectives_open_mpi: " << error.what() << '\n';
    MPI_Abort(world, 1);
  }
  MPI_Finalize();
}
