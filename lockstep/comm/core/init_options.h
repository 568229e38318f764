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
  // Timeout of init_process_group(), and the default of every call. A short timeout turns a slow
  // file system or a long evaluation on one rank into an Error. By default no call waits without
  // limit.
  std::chrono::milliseconds timeout = default_timeout;

  // Time after which init_process_group() warns of ranks that have not come, and where it expects
  // them. Further warnings follow after growing times. A short time warns of slow starts.
  std::chrono::milliseconds warn_after = std::chrono::seconds(10);

  // Name of this world, the same on all of its ranks. Named worlds may exist beside each other and
  // beside the unnamed one. They may follow each other in a process, even while slower ranks still
  // leave the previous one. Ranks find each other only through `store`, which is required. A name
  // is unique among the worlds that exist in it; values of earlier worlds do no harm.
  std::string name = {};

  // This rank's place in the job; by default from the launcher's environment variables.
  std::optional<LaunchEnvironment> environment = {};

  // Store that all ranks share. They use it to agree on a unique name for the job, and to find out
  // which host each is on. Without `name`, it must not contain data of an earlier run of the same
  // job.
  // By default, the launcher's variables name the job, and its store if the ranks are on several
  // hosts. Ranks on several hosts that have only RANK and WORLD_SIZE also need LOCAL_WORLD_SIZE.
  std::shared_ptr<Store> store = {};

  // Transport of CPU data. When empty, LOCKSTEP_BACKEND; when that is empty too, "auto".
  //   shm           shared memory: all ranks on one host
  //   shm+ENGINE    shared memory inside a host, ENGINE between hosts: mpi, gloo, oneccl, or, in
  //                 Python programs, torch
  //   ENGINE        ENGINE between all ranks, on one host too
  //   auto          shm on one host; else shm+ENGINE, or ENGINE when every host has one rank only,
  //                 with the first of mpi (under mpirun or with mpi_communicator), gloo, oneccl
  //                 and torch that all ranks have. LOCKSTEP_LOG=info logs the choice and why.
  // CUDA tensors always use NCCL.
  std::string backend = {};

  // Network on which ranks of other hosts reach this one: an interface, an address, or a network in
  // CIDR form. Comma-separated entries are tried in order. When empty, LOCKSTEP_INTERFACE; when
  // that is empty too, the interface with the route to the job's store.
  std::string interface = {};

  // An MPI_Comm*, for a program that has called MPI_Init_thread() with MPI_THREAD_MULTIPLE itself.
  // Its ranks become the group's ranks, in their order. It is duplicated, and must be valid only
  // during init_process_group().
  const void* mpi_communicator = nullptr;
};

}  // namespace lockstep
