// A rank of a program that uses MPI itself, and Lockstep's engine beside it.
//
//   mpi_program_rank PLUGIN odd       the odd ranks pass a communicator of theirs, which works
//   mpi_program_rank PLUGIN single    MPI_Init() alone does not suffice: identify() reports it
//   mpi_program_rank PLUGIN foreign   the plugin was compiled for another MPI: probe() reports it
//   mpi_program_rank PLUGIN supports  operations that are native, and others

// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/mpi/library.h"  // <mpi.h>
#include "lockstep/job/detail/operation.h"
#include "tests/engines/engine_checks.h"

namespace {

using lockstep::DType;
using lockstep::Operation;
using lockstep::ReduceOp;
using lockstep::test::World;

void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

void expect_refusal(int result, const lockstep_engine_error& error,
                    std::initializer_list<std::string_view> words) {
  expect(result != 0, "not refused");
  expect(error.fault == static_cast<std::int32_t>(lockstep::Fault::unsupported), error.text);
  for (const std::string_view word : words)
    expect(std::string_view(error.text).find(word) != std::string_view::npos,
           "no '" + std::string(word) + "' in: " + error.text);
  std::cout << "refused: " + std::string(error.text) + "\n" << std::flush;
}

void odd(const lockstep_engine& engine) {
  int level = 0;
  int rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  if (rank % 2 == 1) {
    const World world = lockstep::test::identify(engine, &half);
    expect(world.rank == rank / 2 && world.size > 1, "identify() does not know who this is");
    expect(lockstep::test::identify(engine, &half).rank == world.rank, "it forgot who this is");
    lockstep::test::check_engine(engine, world);
  }
  MPI_Comm_free(&half);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  if (rank == 1) std::cout << "the odd ranks are as they should be" << std::endl;
}

void single(const lockstep_engine& engine) {
  MPI_Init(nullptr, nullptr);
  const void* world = nullptr;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  lockstep_engine_error error{};
  const int result = engine.identify(nullptr, &world, &rank, &size, &error);
  expect_refusal(result, error, {"MPI_THREAD_SINGLE", "MPI_THREAD_MULTIPLE", "MPI_Init_thread("});
  MPI_Finalize();
}

void foreign(const lockstep_engine& engine) {
  char version[512] = {};
  lockstep_engine_error error{};
  const int result = engine.probe(version, sizeof version, &error);
  expect_refusal(result, error, {"compiled for", "LOCKSTEP_ENGINE_PATH"});
}

void supports(const lockstep_engine& engine) {
  const auto native = [&](Operation operation, DType dtype, ReduceOp op) {
    return engine.supports(static_cast<std::uint8_t>(operation), static_cast<std::uint8_t>(dtype),
                           static_cast<std::uint8_t>(op)) != 0;
  };
  for (int i = 0; i < lockstep::dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool is_half = dtype == DType::float16 || dtype == DType::bfloat16;
    const bool is_floating = is_half || dtype == DType::float32 || dtype == DType::float64;
    const bool is_small = dtype == DType::int8 || dtype == DType::uint8 || dtype == DType::int16 ||
                          dtype == DType::uint16;
    const std::string of = " of dtype " + std::to_string(i);
    for (const auto operation :
         {Operation::broadcast, Operation::all_gather, Operation::all_to_all})
      expect(native(operation, dtype, ReduceOp::sum), "a movement is not native" + of);
    for (const auto operation :
         {Operation::all_reduce, Operation::reduce, Operation::reduce_scatter}) {
      expect(native(operation, dtype, ReduceOp::sum) == !(is_half || is_small), "sums" + of);
      expect(native(operation, dtype, ReduceOp::product) == !is_half, "products" + of);
      for (const auto op :
           {ReduceOp::min, ReduceOp::max, ReduceOp::band, ReduceOp::bor, ReduceOp::bxor})
        expect(native(operation, dtype, op) == !is_floating, "min, max or bits" + of);
      expect(!native(operation, dtype, ReduceOp::average), "averages" + of);
    }
    expect(!native(Operation::barrier, dtype, ReduceOp::sum), "barriers are not for engines");
  }
  expect(engine.cancel == nullptr, "MPI cannot cancel");
  expect(engine.devices == 1, "MPI serves CPU memory");
  std::cout << "what is native is as it should be" << std::endl;
}

void run(int argc, char** argv) {
  expect(argc == 3, "mpi_program_rank PLUGIN MODE");
  const std::string_view mode = argv[2];
  const lockstep_engine& engine = lockstep::test::open_plugin(argv[1]);
  if (mode == "odd")
    odd(engine);
  else if (mode == "single")
    single(engine);
  else if (mode == "foreign")
    foreign(engine);
  else if (mode == "supports")
    supports(engine);
  else
    throw std::invalid_argument("no mode " + std::string(mode));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "mpi_program_rank: " << error.what() << std::endl;
    return 1;
  }
}
