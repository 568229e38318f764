// The engine communicators of a group on several hosts. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/hosts/engine_communicator.h"
#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

// The first call for each communicator makes it, and is collective over its members. Blocking,
// Errors: as EngineCommunicator's constructor.
class HostsEngines {
 public:
  // Makes all communicators if the engine requires one order on all ranks. Calls `watch`, which may
  // throw, while it waits. `group` must outlive this object.
  HostsEngines(const HostsGroup& group, std::chrono::milliseconds timeout,
               std::function<void()> watch);
  ~HostsEngines();
  HostsEngines(const HostsEngines&) = delete;
  HostsEngines& operator=(const HostsEngines&) = delete;

  // Between ranks that own the same slice; rank r is on host r.
  EngineCommunicator& of_slice(const HostsCall& call);

  EngineCommunicator& of_all(const HostsCall& call);

 private:
  void make_all(std::chrono::milliseconds timeout);
  std::unique_ptr<EngineCommunicator> make(const HostsCall& call, const std::vector<int>& members,
                                           int rank, const std::string& what, Backend::Place local);

  const HostsGroup& group_;
  std::function<void()> watch_;  // Only during the constructor.
  std::unique_ptr<EngineCommunicator> of_slice_;
  std::unique_ptr<EngineCommunicator> of_all_;
};

// One collective. An engine that cannot cancel may use memory after the caller has failed: for such
// an engine, memory unknown to KeptMemory is copied.
class EngineCall {
 public:
  // Calls that exist at the same time have different slots.
  static constexpr std::size_t slots = 2;

  // `memory`, `call` and `engine` must outlive this object, as must the counts and memory of
  // `collective`.
  EngineCall(KeptMemory& memory, const HostsCall& call, EngineCommunicator& engine,
             const Collective& collective, std::size_t slot = 0);
  ~EngineCall();  // Aborts a running call: EngineCommunicator::abort().
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

  // At most one runs at a time on an engine's communicator.
  void start();

  // Blocking: until it is complete. Errors: as Backend::run().
  void wait();

  void deliver();

 private:
  // Indices of scratch memory, each plus the slot. HostsCollectives uses the first four.
  static constexpr std::size_t staged_input = 4;
  static constexpr std::size_t staged_output = staged_input + slots;

  void keep(Buffer& buffer, std::size_t scratch, bool is_read);

  KeptMemory& memory_;
  const HostsCall& call_;
  EngineCommunicator& engine_;
  Collective collective_;
  const Buffer result_;
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> kept_;
  bool is_under_way_ = false;
};

}  // namespace lockstep::comm
