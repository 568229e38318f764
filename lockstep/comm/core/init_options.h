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
  // Timeout of init_process_group(), and the default of every call. If short, a slow file system or
  // a long evaluation on one rank becomes an Error.
  std::chrono::milliseconds timeout = default_timeout;

  // Time until init_process_group() warns of missing ranks, then again at growing intervals. A
  // short time warns of slow starts.
  std::chrono::milliseconds warn_after = std::chrono::seconds(10);

  // Name of this world, the same on all its ranks. Named worlds need `store`, and may exist beside
  // each other and the unnamed one. A name is unique among the store's existing worlds; values of
  // earlier worlds do no harm.
  std::string name = {};

  // This rank's place in the job; by default that in mpi_communicator, or the launcher's variables.
  std::optional<LaunchEnvironment> environment = {};

  // Store that all ranks share. Without `name`, it must not contain data of an earlier run of the
  // same job. By default, the launcher's variables name the job, and its store for several hosts.
  // With only RANK and WORLD_SIZE, ranks on several hosts also need LOCAL_WORLD_SIZE.
  std::shared_ptr<Store> store = {};

  // Transport of CPU data; CUDA tensors always use NCCL. When empty: LOCKSTEP_BACKEND, or else
  // "auto".
  //   shm           Shared memory: all ranks on one host.
  //   shm+ENGINE    Shared memory inside a host, ENGINE between hosts: mpi, gloo, oneccl, or, in
  //                 Python programs, torch.
  //   ENGINE        ENGINE between all ranks, on one host too.
  //   auto          On one host, shm. Otherwise shm+ENGINE, or ENGINE when every host has one rank.
  //                 ENGINE is the first that all ranks have: mpi (with an MPI launcher or
  //                 mpi_communicator), gloo, oneccl, torch. LOCKSTEP_LOG=info logs the choice.
  std::string backend = {};

  // Network on which other hosts reach this rank: an interface, an address or a CIDR network.
  // Comma-separated entries are tried in order. When empty: LOCKSTEP_INTERFACE, or else the
  // interface with the route to the job's store; with `store`, the default route's.
  std::string interface = {};

  // An MPI_Comm*, instead of `store`, after MPI_Init_thread() with MPI_THREAD_MULTIPLE. Its ranks
  // become the group's, in order. It need only be valid during init_process_group().
  const void* mpi_communicator = nullptr;
};

}  // namespace lockstep
