// The state that all copies of a ProcessGroup share.
//
// Thread safety, Blocking, Errors: as ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/call_queue.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/group_collectives.h"
#include "lockstep/comm/group/group_failure.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/group_life.h"
#include "lockstep/comm/group/rank_in_job.h"
#include "lockstep/comm/group_messages.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Counts the attempts of group_of(). Each needs a new name: stores and connections keep messages of
// earlier ones. Thread safety: any thread may call it.
class ChildTries {
  struct Tries {
    std::timed_mutex mutex;
    std::uint64_t last = 0;
  };

 public:
  // The right to make this group, for one thread at a time. Errors: timeout, if another thread
  // still makes it.
  class Turn {
   public:
    Turn(ChildTries& all, const std::string& name, const std::vector<int>& ranks,
         Deadline deadline);

    // The number of the next attempt: from 1, and at least `least`.
    std::uint64_t next(std::uint64_t least) {
      return tries_.last = std::max(tries_.last + 1, least);
    }

   private:
    Tries& tries_;
    std::unique_lock<std::timed_mutex> lock_;
  };

 private:
  Tries& of(const std::string& name, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    return all_[{name, ranks}];
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<int>>, Tries> all_;
};

class ProcessGroup::State : public std::enable_shared_from_this<State> {
 public:
  struct Parts {
    comm::GroupIdentity identity;  // All but the backend's name and place.
    std::shared_ptr<comm::Backend> backend;
    std::shared_ptr<comm::RankInJob> in_job;
    std::function<void()> finish = [] {};   // Ends the group on all ranks.
    std::function<void()> leave = [] {};    // Leaves it in order, on this rank.
    std::function<void()> abandon = [] {};  // Ends this rank's part otherwise.
  };

  // In a fork()ed child, destroying the last handle leaves the State unchanged.
  static std::shared_ptr<State> make(Parts parts);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const comm::GroupIdentity& identity() const { return identity_; }

  // Errors: misuse in a fork()ed child, and for a destroyed group.
  std::shared_ptr<comm::RankInJob> in_job() const;

  // Runs the collective on this thread after all earlier calls, whose time counts too. The caller
  // owns counts and options.
  void run(comm::Collective&& collective, const CallOptions& options);

  // `counts` owns what collective.counts refers to.
  Work submit(comm::Collective collective, std::shared_ptr<const Counts> counts,
              const CallOptions& options);

  RegisteredMemory allocate(Operation operation, std::size_t bytes, const CallOptions& options);
  RegisteredMemory allocate_local(std::size_t bytes) const;

  Source message(const std::shared_ptr<comm::Message>& message, const CallOptions& options);
  Work message_async(const std::shared_ptr<comm::Message>& message, const CallOptions& options);

  // Null without a color. `layout` is a hash of the arguments that must be equal on all ranks.
  std::shared_ptr<State> split(std::optional<int> color, int key, std::uint64_t layout,
                               const CallOptions& options);

  std::shared_ptr<State> group_of(const std::vector<int>& ranks, std::string_view name,
                                  const CallOptions& options);

  void destroy();                                                     // With the other ranks.
  void leave();                                                       // Without them.
  void add_last_act(std::weak_ptr<const std::function<void()>> act);  // before_end()
  std::shared_ptr<void> attachment(std::type_index type,
                                   const std::function<std::shared_ptr<void>()>& make);
  void abort(std::string_view reason);
  std::string flight_record() const;

 private:
  explicit State(Parts parts);

  comm::CallQueue::Turn take_turn(comm::Collective& collective);
  std::shared_ptr<State> make_child(const std::vector<int>& members, std::string name,
                                    std::chrono::milliseconds timeout,
                                    const std::function<void()>& watch);
  std::vector<std::shared_ptr<State>> children();
  std::string record_with(const comm::FlightRecordHeader& header) const;
  std::exception_ptr end_with(Fault fault, std::string_view reason);
  void run_last_acts();
  enum class End { with_all, alone };
  void retire(End end);

  const comm::GroupIdentity identity_;
  const std::function<void()> finish_;
  const std::function<void()> leave_;
  const std::function<void()> abandon_;
  comm::GroupLife life_;
  comm::GroupFailure failure_;
  comm::GroupCollectives collectives_;
  comm::GroupMessages messages_;

  std::uint64_t splits_ = 0;  // Only for the thread that holds the turn.

  std::mutex last_acts_mutex_;
  std::vector<std::weak_ptr<const std::function<void()>>> last_acts_;

  std::mutex children_mutex_;
  std::vector<std::weak_ptr<State>> children_;
  ChildTries child_tries_;

  std::mutex attachments_mutex_;
  std::map<std::type_index, std::shared_ptr<void>> attachments_;

  comm::CallQueue calls_;  // Last: its thread must end before the members it uses.
};

// Lets the rest of the library make groups and reach their state.
struct GroupAccess {
  static ProcessGroup::State& state_of(const ProcessGroup& group) { return group.state(); }

  static ProcessGroup of(std::shared_ptr<ProcessGroup::State> state) {
    return ProcessGroup(std::move(state));
  }

  static ProcessGroup make(ProcessGroup::State::Parts parts) {
    return ProcessGroup(ProcessGroup::State::make(std::move(parts)));
  }
};

}  // namespace lockstep
