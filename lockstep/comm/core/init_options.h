// Options of init_process_group().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/time.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/store/store.h"

namespace lockstep {

struct InitOptions {
  // For init itself and for every call that gives none of its own. Too short a time turns a slow
  // file system or a long evaluation on one rank into an Error; no time is waited for ever.
  std::chrono::milliseconds timeout = default_timeout;

  // Who this rank is; taken from the launcher's environment variables when not given.
  std::optional<LaunchEnvironment> environment = {};

  // Through which the ranks agree on a name for the job that no other has, and see that they are on
  // one host, or on which hosts: any store that all of them share, with nothing left in it by an
  // earlier run of the same job. Without one the launcher's variables name the job, and lead to its
  // store when the ranks are on several hosts. Ranks on several hosts that were told nothing but
  // RANK and WORLD_SIZE say LOCAL_WORLD_SIZE too.
  std::shared_ptr<Store> store = {};

  // How bytes move. When empty, LOCKSTEP_BACKEND; when that is empty too, "auto".
  //   shm           shared memory: all ranks on one host
  //   shm+ENGINE    shared memory inside a host, ENGINE between hosts: mpi, gloo or oneccl
  //   ENGINE        ENGINE between all ranks, on one host too
  //   auto          shm on one host; else shm+ENGINE, or ENGINE when every host has one rank only,
  //                 with the first of mpi (under mpirun or with mpi_communicator), gloo and oneccl
  //                 that all ranks have. LOCKSTEP_LOG=info says what was chosen, and why.
  // CUDA tensors go by NCCL whatever this says.
  std::string backend = {};

  // Which network ranks of other hosts reach this one by: an interface, an address or a network in
  // CIDR form, tried in order where there are several, separated by commas. When empty,
  // LOCKSTEP_INTERFACE; when that is empty too, the one with the route to the job's store.
  std::string interface = {};

  // For a program that has called MPI_Init_thread() with MPI_THREAD_MULTIPLE itself: an MPI_Comm*,
  // whose ranks become those of the group, in their order. Duplicated; must be valid during
  // init_process_group() only.
  const void* mpi_communicator = nullptr;
};

}  // namespace lockstep
