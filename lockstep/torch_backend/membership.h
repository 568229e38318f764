// This process's membership in one group of torch.distributed.
//
// A group whose members are all in a world is created from it without the store, unless `interface`
// or `transport` is set. Any other group is a new world, with a rendezvous in the store.
//
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch_backend/ordered_calls.h"

namespace lockstep::torch_backend {

struct Place {
  c10::intrusive_ptr<c10d::Store> store;  // Used by this group only.
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = kBackendDefaultTimeout;
  std::string name = {};  // Equal on all ranks.
  // By rank; empty for the job's group, and if unknown.
  std::vector<std::int64_t> global_ranks = {};
  // Group ranks equal global ranks.
  bool is_job = false;
  std::string interface = {};  // InitOptions::interface, and
  std::string transport = {};  // InitOptions::backend.
};

class Membership {
 public:
  // Collective. Errors: as init_process_group(); KeyboardInterrupt.
  static std::shared_ptr<Membership> join(const Place& place);

  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const Place& place() const { return place_; }
  const ProcessGroup& group() const { return group_; }
  // Whether neither created from another group nor left.
  bool is_world() const { return is_world_ && !left_; }
  const std::shared_ptr<OrderedCalls>& calls() const { return calls_; }

  // `asked`, or the group's timeout for kUnsetTimeout.
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // An Error of `act` that breaks the group sets error().
  template <class Act>
  void noting_errors(const Act& act);

  // The last error that broke the group.
  c10d::ErrorType error() const { return error_; }

  void abort(std::string_view reason);

  // Leaves in order, unless fail_process() was called. Further calls do nothing.
  void leave();

  // Leaves all groups, the newest first. No calls may follow.
  static void leave_all();

  // Fails unstarted calls; leaves the groups, newest first, if the process exits with code 0.
  static void leave_all_at_exit();

  // Counts a training step in the oldest world, if any, for `lockstep top` and `lockstep tune`.
  static void count_step();

  // This process then leaves no group in order, so that other ranks treat its exit as a failure.
  static void fail_process(const std::string& text);

 private:
  Membership(Place place, ProcessGroup group, bool is_world);
  void note(const Error& error);
  bool end_calls();
  static void offer_memory(const std::shared_ptr<Membership>& ours);

  const Place place_;
  ProcessGroup group_;
  const bool is_world_;
  const std::shared_ptr<OrderedCalls> calls_ = std::make_shared<OrderedCalls>();
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::atomic<bool> left_{false};
  std::atomic<bool> gives_memory_{false};  // To RegisteredAllocator.
};

template <class Act>
void Membership::noting_errors(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    note(error);
    throw;
  }
}

}  // namespace lockstep::torch_backend
