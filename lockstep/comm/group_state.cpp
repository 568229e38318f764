// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/collective_calls.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/job/activity.h"

namespace lockstep {
namespace {

// Takes about as long as a hand-over between threads.
constexpr std::size_t worth_a_thread = std::size_t{256} << 10;

std::uint64_t hash_of_label(std::string_view label) {
  return label.empty() ? 0 : comm::hash_of(label.data(), label.size());
}

void apply(const CallOptions& options, const comm::GroupIdentity& group,
           comm::Collective& collective) {
  collective.signature.label = hash_of_label(options.label);
  collective.label = cut_text(options.label, comm::most_carried_label_bytes);
  collective.timeout = group.timeout_of(options.timeout);
}

// The number of a rank's running attempt to make the group; with `counts_ended`, also the number
// after an ended one. Otherwise 0.
std::uint64_t shown_try(const ShownCall& making, const GroupName& name, bool counts_ended) {
  const std::uint64_t before = making.state.load();
  for (std::size_t i = 0; i < name.size(); ++i)
    if (making.group[i].load() != name[i]) return 0;
  const std::uint64_t number = making.state.load() >> 16;
  if (number != before >> 16 || number == 0) return 0;  // It is being changed.
  if (making.inside()) return number;
  return counts_ended ? number + 1 : 0;
}

// The latest among these ranks of the job.
std::uint64_t shown_try(const comm::RankContext& rank_context, const std::vector<int>& ranks,
                        const GroupName& name, bool counts_ended) {
  std::uint64_t latest = 0;
  for (const int rank : ranks)
    if (const auto activity = rank_context.activity_of(rank))
      latest = std::max(latest, shown_try(activity->making, name, counts_ended));
  return latest;
}

// Publishes this rank's attempt to make a group. The last of several threads counts.
class ShownMaking {
 public:
  ShownMaking(Activity& activity, const GroupName& name, std::uint64_t number)
      : making_(activity.making), name_(name), number_(number) {
    // Like ShownCall::enter(), but seq_cst: shown_try() must not take an old number for this
    // name's.
    making_.state.store(0);
    for (std::size_t i = 0; i < name_.size(); ++i) making_.group[i].store(name_[i]);
    making_.since.store(ticks_now());
    making_.state.store(number_ << 16 | static_cast<std::uint64_t>(Operation::split) << 8 | 1);
  }
  ~ShownMaking() {
    if (shown_try(making_, name_, false) == number_) making_.leave(ticks_now());
  }
  ShownMaking(const ShownMaking&) = delete;
  ShownMaking& operator=(const ShownMaking&) = delete;

 private:
  ShownCall& making_;
  const GroupName name_;
  const std::uint64_t number_;
};

std::string name_of_try(const std::string& name, std::uint64_t number) {
  return number == 1 ? name : fmt::format("{}#{}", name, number);
}

}  // namespace

ChildTries::Turn::Turn(ChildTries& all, const std::string& name, const std::vector<int>& ranks,
                       Deadline deadline)
    : tries_(all.of(name, ranks)), lock_(tries_.mutex, std::defer_lock) {
  if (lock_.try_lock()) return;
  if (deadline == no_deadline)
    lock_.lock();
  else if (!lock_.try_lock_until(deadline))
    throw Error(Fault::timeout,
                fmt::format("making group {}: another thread still makes one of this name", name));
}

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::make(Parts parts) {
  return {new State(std::move(parts)), [](State* state) {
            if (state->identity().pid == this_process()) return delete state;
            // A fork()ed child must not access the parent's state. Kept: no leak is reported.
            static std::mutex mutex;
            static auto& parents = *new std::vector<State*>;
            const std::lock_guard lock(mutex);
            parents.push_back(state);
          }};
}

ProcessGroup::State::State(Parts parts)
    : is_world_(parts.is_world),
      group_(std::move(parts.identity), {std::move(parts.rank_context), std::move(parts.backend)}),
      collectives_(group_),
      messages_(group_) {}

ProcessGroup::State::~State() {
  if (group_.is_over()) return;
  // First: peers then see the rank's exit, not only the group's end.
  if (is_world_) group_.rank_context().abandon();
  group_.backend().abort(
      {.fault = Fault::peer_lost,
       .ranks = {identity().rank},
       .reason = fmt::format("rank {} left it without destroy_process_group()", identity().rank)});
  // Its thread may outlive this object, but no longer accesses the users' memory.
  messages_.end(std::make_exception_ptr(
      Error(Fault::aborted, fmt::format("group {} was left", identity().name))));
}

void ProcessGroup::State::note_call() const {
  if (identity().pid != this_process() || group_.is_broken()) return;
  if (const auto rank_context = group_.remaining().rank_context) rank_context->note_call();
}

std::shared_ptr<comm::RankContext> ProcessGroup::State::rank_context() const {
  identity().require_own_process();
  return group_.resources().rank_context;
}

// --- Collectives --------------------------------------------------------------------------------

// Reduces `collective`'s timeout to the time that earlier calls have left.
comm::CallQueue::Turn ProcessGroup::State::take_turn(comm::Collective& collective) {
  identity().require_own_process();
  auto turn = calls_.try_turn();
  if (!turn) {
    const Deadline deadline = in(collective.timeout);
    turn = calls_.take_turn(collective.timeout, deadline);
    if (!turn) {
      group_.throw_if_broken();
      group_.require_usable();
      std::rethrow_exception(end_with(
          Fault::timeout, fmt::format("{} waited {:.1f} s for earlier calls of this group",
                                      lockstep::name(collective.signature.operation),
                                      static_cast<double>(collective.timeout.count()) / 1000)));
    }
    collective.timeout = until(deadline);
  }
  group_.require_usable();
  return turn;
}

void ProcessGroup::State::run(Operation operation, const CollectiveArguments& given,
                              const CallOptions& options) {
  comm::Collective collective = comm::collective_of(operation, given, identity());
  apply(options, identity(), collective);
  const auto turn = take_turn(collective);
  comm::require_possible(collective, group_.backend());
  collectives_.execute(collective);
}

Work ProcessGroup::State::submit(Operation operation, const CollectiveArguments& given,
                                 const CallOptions& options) {
  comm::Collective collective = comm::collective_of(operation, given, identity());
  identity().require_own_process();
  apply(options, identity(), collective);
  comm::require_possible(collective, *group_.resources().backend);
  note_call();
  const comm::CallQueue::Options how{.timeout = collective.timeout,
                                     .is_long = comm::bytes_of(collective) >= worth_a_thread};
  return calls_.submit(
      [this, collective, counts = Counts(collective.counts.begin(), collective.counts.end()),
       label = std::string(collective.label), kept = options.keep_alive]() mutable {
        group_.require_usable();
        collective.counts = counts;
        collective.label = label;
        collectives_.execute(collective);
      },
      how);
}

RegisteredMemory ProcessGroup::State::allocate(Operation operation, std::size_t bytes,
                                               const CallOptions& options) {
  comm::Collective collective{.signature = {.count = bytes, .operation = operation}};
  apply(options, identity(), collective);
  const auto turn = take_turn(collective);
  comm::Backend::Allocation allocation;
  collectives_.perform(collective, [&](comm::Collective& entered) {
    allocation = group_.backend().allocate(entered);
  });
  if (!allocation.refusal.empty())
    throw Error(Fault::system,
                fmt::format("{}: {}", identity().describe(collective), allocation.refusal));
  return allocation.memory;
}

RegisteredMemory ProcessGroup::State::allocate_local(std::size_t bytes) const {
  identity().require_own_process();
  return group_.resources().backend->allocate_local(bytes);
}

// --- Sub-groups ---------------------------------------------------------------------------------

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::split(std::optional<int> color, int key,
                                                                std::uint64_t layout,
                                                                const CallOptions& options) {
  comm::Collective collective{.signature = {.layout = layout, .operation = Operation::split}};
  apply(options, identity(), collective);
  const auto turn = take_turn(collective);
  collective.signature.count = ++splits_;
  std::shared_ptr<State> child;
  collectives_.perform(collective, [&](comm::Collective& entered) {
    const std::int64_t mine[] = {color.has_value(), color.value_or(0), key};
    std::vector<std::int64_t> all;
    collectives_.all_gather_words(entered, mine, all);
    if (!color) return;
    std::vector<std::pair<std::int64_t, int>> members;  // Key and rank.
    for (int peer = 0; peer < identity().size; ++peer) {
      const std::int64_t* theirs = &all[static_cast<std::size_t>(peer) * 3];
      if (theirs[0] != 0 && theirs[1] == *color) members.emplace_back(theirs[2], peer);
    }
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& [order, member] : members) ranks.push_back(member);
    const std::string label = options.label.empty() ? "" : fmt::format(".{}", collective.label);
    const std::string suffix = layout == 0 ? fmt::format(":{}", *color) : "";
    child = make_child(ranks, fmt::format("{}.{}{}{}", identity().name, splits_, label, suffix),
                       entered.timeout, [] {});
  });
  return child;
}

// Bypasses CallQueue: other ranks may be in calls. A late member cannot detect failed attempts, so
// members publish theirs and catch up with the latest one on this host.
std::shared_ptr<ProcessGroup::State> ProcessGroup::State::group_of(const std::vector<int>& ranks,
                                                                   std::string_view name,
                                                                   const CallOptions& options) {
  identity().require_own_process();
  group_.throw_if_broken();
  const std::string list = fmt::format("of ranks {}", fmt::join(ranks, ","));
  comm::Collective meeting{.signature = {.operation = Operation::split}};
  apply({.timeout = options.timeout, .label = list}, identity(), meeting);
  const Deadline deadline = in(meeting.timeout);
  const std::string base = fmt::format("{}.{}", identity().name, name);
  const GroupName shown = pack_group_name(fmt::format("{} {}", base, list));
  ChildTries::Turn turn(child_tries_, base, ranks, deadline);
  std::vector<int> others;  // Ranks of the job.
  for (const int member : ranks)
    if (member != identity().rank) others.push_back(identity().world_rank(member));
  const auto rank_context = group_.resources().rank_context;
  for (std::uint64_t least = shown_try(*rank_context, others, shown, true);;) {
    const std::uint64_t number = turn.next(least);
    const ShownMaking showing(rank_context->activity(), shown, number);
    const auto watch = [&] {
      if (shown_try(*rank_context, others, shown, false) > number)
        throw Error(
            Fault::aborted,
            fmt::format("new_group {}: another rank has restarted the creation of this group",
                        base));
    };
    try {
      auto child = make_child(ranks, name_of_try(base, number), until(deadline), watch);
      // Checks that all passed this list.
      child->collectives_.perform(meeting, [](const comm::Collective&) {});
      return child;
    } catch (const Error& error) {
      least = shown_try(*rank_context, others, shown, false);
      const bool goes_on = error.fault() == Fault::timeout || error.fault() == Fault::aborted;
      if (!goes_on || least <= number || Clock::now() >= deadline) throw;
      group_.throw_if_broken();
    }
  }
}

std::vector<std::shared_ptr<ProcessGroup::State>> ProcessGroup::State::children() {
  std::vector<std::shared_ptr<State>> alive;
  const std::lock_guard lock(children_mutex_);
  for (const auto& weak : children_)
    if (auto child = weak.lock()) alive.push_back(std::move(child));
  return alive;
}

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::make_child(
    const std::vector<int>& members, std::string name, std::chrono::milliseconds timeout,
    const std::function<void()>& watch) {
  const auto own = std::find(members.begin(), members.end(), identity().rank);
  const auto backend = group_.resources().backend;
  Parts parts;
  try {
    parts.backend = backend->among(members, name, timeout, watch);
  } catch (const comm::GroupAborted&) {  // The error has this group's ranks.
    throw;
  } catch (const Error& error) {
    if (error.ranks().empty()) throw;
    std::vector<int> ranks;
    for (const int rank : ranks_within(error.ranks(), static_cast<int>(members.size())))
      ranks.push_back(members[static_cast<std::size_t>(rank)]);
    throw Error(error.fault(), bare_text(error), std::move(ranks));
  }
  parts.identity = {.name = std::move(name),
                    .rank = static_cast<int>(own - members.begin()),
                    .size = static_cast<int>(members.size()),
                    .timeout = identity().timeout};
  for (const int member : members) parts.identity.members.push_back(identity().world_rank(member));
  parts.rank_context = group_.resources().rank_context;
  parts.is_world = false;
  auto child = make(std::move(parts));
  child->set_origin({.processes = origin_.processes});
  const std::lock_guard lock(children_mutex_);
  std::erase_if(children_, [](const auto& weak) { return weak.expired(); });
  children_.push_back(child);
  return child;
}

// --- The end ------------------------------------------------------------------------------------

void ProcessGroup::State::destroy() {
  identity().require_own_process();
  run_last_acts();
  comm::Collective collective{.signature = {.operation = Operation::destroy},
                              .timeout = identity().timeout};
  const auto turn = take_turn(collective);
  collectives_.perform(collective, [&](comm::Collective& entered) {
    // All ranks have entered, so none sends or receives any more.
    entered.signature.count = messages_.pending();
    group_.backend().enter(entered);
    for (int peer = 0; peer < identity().size; ++peer)
      if (group_.backend().entered(peer).count != 0)
        throw Error(Fault::mismatch,
                    fmt::format("{}: rank {} called {}", identity().describe(entered), peer,
                                comm::describe(group_.backend().entered(peer))),
                    {peer});
  });
  if (is_world_) group_.rank_context().finish();
  retire(End::with_all);
}

// Also for a broken group. Running calls have their own time limits.
void ProcessGroup::State::leave() {
  identity().require_own_process();
  const auto turn = calls_.take_turn();
  group_.require_usable();
  retire(End::alone);
}

void ProcessGroup::State::add_last_act(std::weak_ptr<const std::function<void()>> act) {
  identity().require_own_process();
  const std::lock_guard lock(last_acts_mutex_);
  last_acts_.push_back(std::move(act));
}

std::shared_ptr<void> ProcessGroup::State::attachment(
    std::type_index type, const std::function<std::shared_ptr<void>()>& make) {
  identity().require_own_process();
  const std::lock_guard lock(attachments_mutex_);
  group_.require_usable();
  std::shared_ptr<void>& found = attachments_[type];
  if (!found) found = make();
  return found;
}

// In reverse order: the timeline, registered first, sends what the others wrote. Unlocked: acts may
// wait for calls.
void ProcessGroup::State::run_last_acts() {
  std::unique_lock lock(last_acts_mutex_);
  const auto acts = last_acts_;
  lock.unlock();
  const auto children = this->children();
  for (auto child = children.rbegin(); child != children.rend(); ++child) (*child)->run_last_acts();
  for (auto weak = acts.rbegin(); weak != acts.rend(); ++weak)
    if (const auto act = weak->lock()) (*act)();
}

// Ends the use of everything shared with other ranks. A rank that dies while it waits for the calls
// of a child must not have left yet: peers must see it as lost.
void ProcessGroup::State::retire(End end) {
  group_.begin_end();
  for (const auto& child : children()) {
    const auto turn = child->calls_.take_turn();
    if (!child->group_.is_over()) child->retire(end);
  }
  // Another thread may be sending. Nothing may follow from a rank that has left.
  messages_.close(std::make_exception_ptr(
      Error(Fault::misuse, fmt::format("group {} was destroyed", identity().name))));
  if (end == End::alone) {
    group_.backend().leave();
    if (is_world_) group_.rank_context().leave();
  }
  group_.end();
  const std::lock_guard lock(attachments_mutex_);
  attachments_.clear();
}

void ProcessGroup::State::abort(std::string_view reason) {
  identity().require_own_process();
  if (group_.is_broken()) return;  // All ranks have the reason or will receive it.
  const auto rank_context = group_.remaining().rank_context;
  if (!rank_context) return;
  // A consequence of a loss must not appear as an abort.
  const Fault fault = rank_context->knows_of_loss() ? Fault::peer_lost : Fault::aborted;
  rank_context->activity().aborted_at.store(ticks_now());
  end_with(fault, reason);
}

// Ends all calls, on all ranks, with the returned Error.
std::exception_ptr ProcessGroup::State::end_with(Fault fault, std::string_view reason) {
  auto error = std::make_exception_ptr(
      Error(fault, fmt::format("group {}: rank {}: {}", identity().name, identity().rank, reason)));
  if (const auto backend = group_.remaining().backend)
    backend->abort({.fault = fault, .rank = identity().rank, .reason = std::string(reason)});
  const bool is_alive = messages_.end(error);
  if (is_alive) group_.break_with(error, fmt::format("group {}", identity().name), {});
  return error;
}

}  // namespace lockstep
