// What all copies of a ProcessGroup share: the order of its calls and their numbers, the check that
// all ranks call the same, its one Error once it is broken, and the record of its last operations.
//
// Thread safety, Blocking, Errors: as ProcessGroup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/progress.h"
#include "lockstep/job/activity.h"

namespace lockstep {

class ProcessGroup::State : public std::enable_shared_from_this<State> {
 public:
  // What all groups of one rank share beside its Activity.
  struct RankWide {
    std::function<void()> expect_preemption = [] {};    // Tell the agent, where there is one.
    std::function<void()> agree_on_preemption = [] {};  // The same.
    // Tells the host, the agent and the log of ranks of the job that ended a call of this one.
    std::function<void(Failure)> tell_of_break = [](const Failure&) {};
    std::atomic<bool> step_is_told{false};  // By set_step().
  };

  // What a group is made of.
  struct Parts {
    std::unique_ptr<Backend> backend;
    int rank = 0;
    int size = 1;
    std::string name;
    std::chrono::milliseconds timeout = default_timeout;
    std::vector<int> members = {};       // Of the job, by rank of this group; empty for all.
    std::shared_ptr<Activity> activity;  // This process's.
    std::shared_ptr<RankWide> rank_wide = std::make_shared<RankWide>();
    std::function<void()> finish = [] {};   // The group ends in order.
    std::function<void()> abandon = [] {};  // It does not.
  };

  // A fork()ed child has copies of the handles, but no part in the group: there, the last one to go
  // leaves the State as it is.
  static std::shared_ptr<State> make(Parts parts);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_.rank; }
  int local_size() const { return local_.size; }
  const std::string& name() const { return name_; }
  const std::string& backend() const { return backend_name_; }

  // On this thread, after all that came before, whose time is this call's too. Counts and options
  // are those of the caller.
  void run(Collective&& collective, const CallOptions& options);

  // On the progress thread. `counts` are what collective.counts refers to.
  Work submit(Collective collective, std::shared_ptr<const Counts> counts,
              const CallOptions& options);

  // An all_to_all of uneven parts, of which no rank knows all counts yet: send_counts, then
  // receive_counts, in one list.
  static constexpr std::uint64_t uneven_pairs = 1;

  RegisteredMemory allocate(Operation operation, std::size_t bytes, const CallOptions& options);

  Source message(const std::shared_ptr<Message>& message, const CallOptions& options);
  Work message_async(const std::shared_ptr<Message>& message, const CallOptions& options);

  // A group of those ranks whose `color` is this one's, ordered by key and rank; null when this
  // rank has no color. `layout` is a hash of what all ranks must give alike.
  std::shared_ptr<State> split(std::optional<int> color, int key, std::uint64_t layout,
                               const CallOptions& options);

  void on_preemption();
  bool preempted(const CallOptions& options);

  void set_step(std::uint64_t step);
  void count_step();  // For a program that never calls set_step().

  void leave();
  void add_last_act(std::weak_ptr<const std::function<void()>> act);  // before_end()
  void abort(std::string_view reason);
  std::string flight_record() const;

 private:
  explicit State(Parts parts);

  std::unique_lock<Turn> take_turn(Collective& collective);
  template <class Act>
  void perform(Collective& collective, Act act);
  void execute(Collective& collective);
  void complete(const Collective& collective);
  void run_native(const Collective& collective);
  void all_to_all_of_uneven_parts(const Collective& collective);
  void throw_unless_all_agree(const Collective& collective) const;
  [[noreturn]] void throw_mismatch(const Collective& collective) const;
  std::vector<std::string> labels_of(const Collective& collective) const;
  void all_gather_words(const Collective& outer, std::span<const std::int64_t> mine,
                        std::vector<std::int64_t>& all);
  std::shared_ptr<State> make_child(const std::vector<int>& members, std::string name,
                                    const Collective& collective);
  std::string context(const Collective& collective) const;

  std::chrono::milliseconds timeout_of(const CallOptions& options) const;
  void apply(const CallOptions& options, Collective& collective) const;
  void require_own_process() const;
  void require_usable() const;
  void require_possible(const Collective& collective) const;
  void throw_if_broken() const;
  // `context` begins the Error's message where a call of this group, which had `timeout`, failed.
  void break_with(std::exception_ptr error, const std::string& context,
                  std::chrono::milliseconds timeout);
  void give_up(const GivenUp& why);
  std::exception_ptr end_with(Fault fault, std::string_view reason);
  Failure in_the_job(Failure failure) const;
  int world_rank(int rank) const;  // -1 for a rank that this group does not have.
  void run_last_acts();
  void retire();

  // Notes that a message begins; what is returned notes its end, and an Error that breaks the
  // group.
  PointToPoint::Done recording(const std::shared_ptr<Message>& message,
                               std::chrono::milliseconds timeout);
  void note_end(std::uint64_t number, const Message& message, std::exception_ptr error,
                std::chrono::milliseconds timeout);
  std::shared_ptr<PointToPoint> usable_messages();
  std::string describe(const Message& message) const;

  const pid_t pid_;
  const int rank_;
  const int size_;
  const Backend::Place local_;
  const std::vector<int> members_;
  const std::string name_;
  const GroupName packed_name_;
  const std::string backend_name_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> finish_;
  const std::function<void()> abandon_;
  const std::shared_ptr<RankWide> rank_wide_;

  Turn order_;  // Held by the call that is being entered.
  std::atomic<bool> destroyed_{false};
  std::uint64_t sequence_ = 0;
  std::uint64_t splits_ = 0;
  std::vector<std::weak_ptr<State>> children_;
  std::vector<std::weak_ptr<const std::function<void()>>> last_acts_;
  FlightRecorder collectives_;

  std::mutex messages_mutex_;  // Guards the record of messages and their number.
  std::uint64_t messages_begun_ = 0;
  FlightRecorder messages_;

  std::atomic<bool> is_broken_{false};
  mutable std::mutex broken_mutex_;
  std::exception_ptr broken_;  // The first Error, thrown again by every later call.

  // Guards these three against leave(), for abort() and for messages, which others may be in.
  std::mutex life_mutex_;
  std::shared_ptr<Activity> activity_;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<PointToPoint> point_to_point_;

  ProgressThread progress_;  // Last, so that its thread ends before what it uses.
};

// How the rest of the library makes groups, and what they share.
struct GroupAccess {
  static ProcessGroup::State& state_of(const ProcessGroup& group) { return group.state(); }

  static ProcessGroup make(ProcessGroup::State::Parts parts) {
    return ProcessGroup(ProcessGroup::State::make(std::move(parts)));
  }
};

}  // namespace lockstep
