// MPI's launcher chooses the networks; config.interface_name has no effect. Settings:
// docs/guide/clusters.md; for UCX, UCX_NET_DEVICES=eth0.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/mpi/communicator.h"
#include "lockstep/comm/engine/mpi/library.h"
#include "lockstep/comm/engine/mpi/types.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::mpi {
namespace {

using Error = lockstep_engine_error;

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
    in_chunks({static_cast<std::byte*>(data), bytes}, 1, [&](void* at, int count) {
      check(MPI_Bcast(at, count, MPI_BYTE, 0, duplicated_world(world)), "MPI_Bcast");
    });
    telling.finish();
  });
}

constexpr lockstep_engine engine = plugin::engine_of<Communicator>({
    .name = "mpi",
    .probe = probe,
    .identify = identify,
    .tell_all = tell_all,
});

}  // namespace
}  // namespace lockstep::comm::mpi

const lockstep_engine* lockstep_engine_v1() { return &lockstep::comm::mpi::engine; }
