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
#include "lockstep/comm/collective_calls.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/group_collectives.h"
#include "lockstep/comm/group/group_context.h"
#include "lockstep/comm/group/group_identity.h"
#include "lockstep/comm/group/rank_context.h"
#include "lockstep/comm/group_messages.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Counts the attempts of group_of(). Each needs a new name: stores and connections keep messages of
// earlier ones.
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

    // The next attempt's number, from 1, at least `least`.
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

// Identifies a group and its processes across the generations of an elastic group
// (elastic_group.h).
struct GroupOrigin {
  // The process of each rank of the world; null in a world whose ranks never change.
  std::shared_ptr<const std::vector<std::string>> processes = {};

  std::string name = {};  // The group's name before its first shrink(); empty: name().
};

class ProcessGroup::State : public std::enable_shared_from_this<State> {
 public:
  struct Parts {
    comm::GroupIdentity identity;  // All but the backend's name and place.
    std::shared_ptr<comm::Backend> backend;
    std::shared_ptr<comm::RankContext> rank_context;
    bool is_world = true;  // Otherwise a sub-group.
  };

  // In a fork()ed child, destroying the last handle leaves the State unchanged.
  static std::shared_ptr<State> make(Parts parts);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const comm::GroupIdentity& identity() const { return group_.identity(); }

  // Subgroups made later have the same processes. Only before other threads use the group.
  void set_origin(GroupOrigin origin) { origin_ = std::move(origin); }
  const GroupOrigin& origin() const { return origin_; }

  // Errors: misuse in a fork()ed child, and for a destroyed group.
  std::shared_ptr<comm::RankContext> rank_context() const;

  // Call it on a thread whose call another thread runs. Does nothing in a fork()ed child, and for a
  // broken or destroyed group.
  void note_call() const;

  // Runs a collective on this thread after all earlier calls; its timeout includes that wait. The
  // caller owns counts and options.
  void run(Operation operation, const CollectiveArguments& given, const CallOptions& options);

  // In the background, with copies of counts and label.
  Work submit(Operation operation, const CollectiveArguments& given, const CallOptions& options);

  RegisteredMemory allocate(Operation operation, std::size_t bytes, const CallOptions& options);
  RegisteredMemory allocate_local(std::size_t bytes) const;

  comm::GroupMessages& messages() { return messages_; }

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
  std::string flight_record() const { return group_.flight_record(); }

 private:
  explicit State(Parts parts);

  comm::CallQueue::Turn take_turn(comm::Collective& collective);
  std::shared_ptr<State> make_child(const std::vector<int>& members, std::string name,
                                    std::chrono::milliseconds timeout,
                                    const std::function<void()>& watch);
  std::vector<std::shared_ptr<State>> children();
  std::exception_ptr end_with(Fault fault, std::string_view reason);
  void run_last_acts();
  enum class End { with_all, alone };
  void retire(End end);

  GroupOrigin origin_;
  const bool is_world_;  // The end of the world's group ends the rank's context.
  comm::GroupContext group_;
  comm::GroupCollectives collectives_;
  comm::GroupMessages messages_;

  std::uint64_t splits_ = 0;  // Only for the thread that CallQueue admits.

  std::mutex last_acts_mutex_;
  std::vector<std::weak_ptr<const std::function<void()>>> last_acts_;

  std::mutex children_mutex_;
  std::vector<std::weak_ptr<State>> children_;
  ChildTries child_tries_;

  std::mutex attachments_mutex_;
  std::map<std::type_index, std::shared_ptr<void>> attachments_;

  comm::CallQueue calls_;  // Last: its thread must end before the members it uses.
};

// For the rest of the library.
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
