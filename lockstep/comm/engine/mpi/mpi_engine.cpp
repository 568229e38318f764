// The engine "mpi": implements the engine ABI with MPI.
//
// MPI's launcher chooses the networks; config.interface_name has no effect. Open MPI's TCP uses
// `mpirun --mca btl_tcp_if_include eth0`. libfabric's TCP (MPICH, Intel MPI) uses
// FI_TCP_IFACE=eth0, UCX uses UCX_NET_DEVICES=eth0.

// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/mpi/communicator.h"
#include "lockstep/comm/engine/mpi/library.h"
#include "lockstep/comm/engine/mpi/types.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::mpi {
namespace {

using Error = lockstep_engine_error;
using Data = lockstep_buffer;

int probe(char* text, std::size_t capacity, Error* error) {
  return plugin::guarded(error, [&] { plugin::copy_text(text, capacity, version()); });
}

int identify(const void* handed_over, const void** world, std::int32_t* rank, std::int32_t* size,
             Error* error) {
  return plugin::guarded(error, [&] {
    version();
    start();
    Unfinished duplication;
    const MPI_Comm* const all = duplicate_world(handed_over);
    duplication.finish();
    *world = all;
    *rank = rank_in(*all);
    *size = size_of(*all);
  });
}

int tell_all(const void* world, void* data, std::size_t bytes, Error* error) {
  return plugin::guarded(error, [&] {
    Unfinished telling;
    in_pieces(static_cast<std::byte*>(data), bytes, 1, [&](void* at, int count) {
      check(MPI_Bcast(at, count, MPI_BYTE, 0, duplicated_world(world)), "MPI_Bcast");
    });
    telling.finish();
  });
}

int supports(std::uint8_t operation, std::uint8_t dtype, std::uint8_t reduce_op) {
  switch (static_cast<Operation>(operation)) {
    case Operation::broadcast:
    case Operation::all_gather:
    case Operation::all_to_all:
      return 1;
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return op_of(static_cast<DType>(dtype), static_cast<ReduceOp>(reduce_op)) != MPI_OP_NULL;
    default:
      return 0;
  }
}

int create(const lockstep_engine_config* config, void** communicator, Error* error) {
  return plugin::guarded(error, [&] { *communicator = new Communicator(*config); });
}

void destroy(void* communicator) { delete static_cast<Communicator*>(communicator); }

// Runs act(communicator); a failure gives up the communicator. `bytes` is the total that it moves,
// equal on all ranks.
template <class Act>
int on(void* communicator, std::size_t bytes, Error* error, Act act) {
  auto& self = *static_cast<Communicator*>(communicator);
  const int result = plugin::guarded(error, [&] {
    act(self);
    if (bytes > plugin::sent_at_once) self.settle();
  });
  if (result != 0) self.give_up();
  return result;
}

int all_reduce(void* communicator, const Data* data, std::uint8_t reduce_op, Error* error) {
  return on(communicator, plugin::bytes_of(*data), error,
            [&](Communicator& c) { c.all_reduce(*data, reduce_op); });
}

int broadcast(void* communicator, const Data* data, std::int32_t root, Error* error) {
  return on(communicator, plugin::bytes_of(*data), error,
            [&](Communicator& c) { c.broadcast(*data, root); });
}

int reduce(void* communicator, const Data* data, std::int32_t root, std::uint8_t reduce_op,
           Error* error) {
  return on(communicator, plugin::bytes_of(*data), error,
            [&](Communicator& c) { c.reduce(*data, root, reduce_op); });
}

int all_gather(void* communicator, const Data* input, const Data* output, const std::size_t* counts,
               Error* error) {
  return on(communicator, plugin::bytes_of(*output), error,
            [&](Communicator& c) { c.all_gather(*input, *output, counts); });
}

int reduce_scatter(void* communicator, const Data* input, const Data* output,
                   const std::size_t* counts, std::uint8_t reduce_op, Error* error) {
  return on(communicator, plugin::bytes_of(*input), error,
            [&](Communicator& c) { c.reduce_scatter(*input, *output, counts, reduce_op); });
}

int all_to_all(void* communicator, const Data* input, const Data* output,
               const std::size_t* send_counts, const std::size_t* receive_counts, Error* error) {
  return on(communicator, plugin::of_any_size, error,
            [&](Communicator& c) { c.all_to_all(*input, *output, send_counts, receive_counts); });
}

constexpr lockstep_engine engine{
    .struct_bytes = sizeof(lockstep_engine),
    .abi = LOCKSTEP_ENGINE_ABI,
    .name = "mpi",
    .devices = 1u << static_cast<unsigned>(DeviceKind::cpu),
    .flags = 0,
    .probe = probe,
    .identify = identify,
    .tell_all = tell_all,
    .supports = supports,
    .create = create,
    .destroy = destroy,
    .cancel = nullptr,  // MPI has no cancellation.
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .reduce = reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
};

}  // namespace
}  // namespace lockstep::mpi

const lockstep_engine* lockstep_engine_v1() { return &lockstep::mpi::engine; }
