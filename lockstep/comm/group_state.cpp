// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/given_up.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/reduce/compose.h"

namespace lockstep {
namespace {

// After these, ranks may no longer agree on where they are, and those that did not see the Error
// would wait for ever.
bool must_be_told(const Error& error) {
  if (error.fault() == Fault::peer_lost) return !error.failure();  // Else all learn who it was.
  return error.fault() != Fault::aborted;
}

std::uint64_t hash_of_label(std::string_view label) {
  return label.empty() ? 0 : hash_of(label.data(), label.size());
}

}  // namespace

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::make(Parts parts) {
  return {new State(std::move(parts)), [](State* state) {
            if (state->pid_ == this_process()) return delete state;
            // The parent's, which a fork()ed child must not touch. Kept, so that no leak is
            // reported.
            static std::mutex mutex;
            static auto& parents = *new std::vector<State*>;
            const std::lock_guard lock(mutex);
            parents.push_back(state);
          }};
}

ProcessGroup::State::State(Parts parts)
    : pid_(this_process()),
      rank_(parts.rank),
      size_(parts.size),
      local_(parts.backend->local()),
      members_(std::move(parts.members)),
      name_(std::move(parts.name)),
      packed_name_(pack_group_name(name_)),
      backend_name_(parts.backend->name()),
      timeout_(parts.timeout),
      finish_(std::move(parts.finish)),
      abandon_(std::move(parts.abandon)),
      rank_wide_(std::move(parts.rank_wide)),
      activity_(std::move(parts.activity)),
      backend_(std::move(parts.backend)),
      point_to_point_(std::make_shared<PointToPoint>(backend_)) {}

ProcessGroup::State::~State() {
  if (!backend_) return;
  abandon_();  // First, so that peers learn of the rank and not only that the group is over.
  backend_->give_up(
      {.fault = Fault::peer_lost,
       .reason = fmt::format("rank {} left it without destroy_process_group()", rank_)});
  // Its thread may outlive us for a moment, but touches nobody's memory any more.
  point_to_point_->end(
      std::make_exception_ptr(Error(Fault::aborted, fmt::format("group {} was left", name_))));
}

std::chrono::milliseconds ProcessGroup::State::timeout_of(const CallOptions& options) const {
  const auto timeout = options.timeout.value_or(timeout_);
  require(timeout.count() >= 0, "a timeout is negative");
  return timeout;
}

void ProcessGroup::State::apply(const CallOptions& options, Collective& collective) const {
  collective.signature.label = hash_of_label(options.label);
  collective.label = cut_text(options.label, most_carried_label_bytes);
  collective.timeout = timeout_of(options);
}

// Before any lock is taken: one that another thread held at the fork() stays locked for ever.
void ProcessGroup::State::require_own_process() const {
  require(pid_ == this_process(), [&] {
    return fmt::format(
        "group {} is of process {}; this one ({}) was fork()ed and has no part in it", name_, pid_,
        this_process());
  });
}

void ProcessGroup::State::require_usable() const {
  require(!destroyed_, [&] { return fmt::format("group {} was destroyed", name_); });
}

// Of buffers in device memory; there is nothing that a backend could not do in the CPU's.
void ProcessGroup::State::require_possible(const Collective& collective) const {
  if (!is_on_device(collective)) return;
  const auto what = lockstep::name(collective.signature.operation);
  const Buffer& input = collective.input;
  const Buffer& output = collective.output;
  const auto is_none = [](const Buffer& buffer) {  // In place, or another rank's alone.
    return buffer.data == nullptr && buffer.count == 0 && buffer.device == DeviceKind::cpu;
  };
  require(is_none(input) || is_none(output) ||
              (input.device == output.device && input.device_index == output.device_index &&
               input.stream == output.stream),
          [&] { return fmt::format("{}: input and output differ in device or stream", what); });
  const std::string refusal = backend_->refusal_on_device(collective);
  if (!refusal.empty()) throw Error(Fault::unsupported, fmt::format("{}: {}", what, refusal));
}

void ProcessGroup::State::throw_if_broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(broken_mutex_);
  std::rethrow_exception(broken_);
}

int ProcessGroup::State::world_rank(int rank) const {
  if (rank < 0 || rank >= size_) return -1;
  return members_.empty() ? rank : members_[static_cast<std::size_t>(rank)];
}

// By the numbers that the job has for its ranks. Another process may have said who is to blame.
Failure ProcessGroup::State::in_the_job(Failure failure) const {
  failure.detected_by = world_rank(failure.detected_by);
  failure.ranks = ranks_within(std::move(failure.ranks), size_);
  for (int& rank : failure.ranks) rank = world_rank(rank);
  failure.rank = failure.ranks.empty() ? -1 : failure.ranks.front();
  return failure;
}

void ProcessGroup::State::break_with(std::exception_ptr error, const std::string& context,
                                     std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(broken_mutex_);
    if (broken_) return;  // The first Error counts.
    broken_ = error;
    is_broken_.store(true, std::memory_order_release);
  }
  std::string what = "unknown";
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    what = known.what();
    if (blames_the_living(known))
      rank_wide_->tell_of_break(in_the_job(blame_in(known, rank_, context, timeout)));
    if (must_be_told(known)) give_up(given_up_for(known, rank_, context));
  } catch (const std::exception& other) {
    what = other.what();
    give_up({.rank = rank_, .reason = what});
  }
  const FlightRecordHeader header{name_, rank_, size_, backend_name_, what};
  save_flight_record(header, lockstep::flight_record(header, collectives_, messages_));
}

// Another thread may be destroying the group.
void ProcessGroup::State::give_up(const GivenUp& why) {
  std::unique_lock lock(life_mutex_);
  const auto backend = backend_;
  lock.unlock();
  if (backend) backend->give_up(why);
}

std::string ProcessGroup::State::flight_record() const {
  return lockstep::flight_record({name_, rank_, size_, backend_name_}, collectives_, messages_);
}

std::string ProcessGroup::State::context(const Collective& collective) const {
  return fmt::format("{} #{} of group {} on rank {}",
                     lockstep::name(collective.signature.operation), collective.sequence, name_,
                     rank_);
}

// --- Collectives --------------------------------------------------------------------------------

// Enters `collective` with all other ranks, sees that they do the same, then acts.
template <class Act>
void ProcessGroup::State::perform(Collective& collective, Act act) {
  require_usable();
  throw_if_broken();
  const Ticks begin = ticks_now();
  collective.sequence = ++sequence_;
  activity_->enter(packed_name_, collective.signature.operation, collective.sequence, begin);
  const std::uint64_t recorded =
      collectives_.enter(collective.signature, collective.sequence, begin);
  try {
    backend_->enter(collective);
    throw_unless_all_agree(collective);
    act(collective);
  } catch (...) {
    collectives_.leave(recorded, FlightRecorder::Phase::failed, ticks_now());
    activity_->leave(ticks_now());
    break_with(std::current_exception(), context(collective), collective.timeout);
    throw;
  }
  const Ticks end = ticks_now();
  collectives_.leave(recorded, FlightRecorder::Phase::completed, end);
  activity_->leave(end);
}

void ProcessGroup::State::throw_unless_all_agree(const Collective& collective) const {
  const Signature& first = backend_->entered(0);
  for (int peer = 1; peer < size_; ++peer)
    if (backend_->entered(peer) != first) throw_mismatch(collective);
}

// All ranks see the same signatures, so all of them say the same.
void ProcessGroup::State::throw_mismatch(const Collective& collective) const {
  std::vector<Signature> calls;
  for (int peer = 0; peer < size_; ++peer) calls.push_back(backend_->entered(peer));
  const bool labels_differ = std::any_of(calls.begin(), calls.end(), [&](const Signature& call) {
    return call.label != calls.front().label;
  });
  const Disagreement found =
      disagreement_of(calls, labels_differ ? labels_of(collective) : std::vector<std::string>());
  throw Error(Fault::mismatch, fmt::format("{}: {}", context(collective), found.text),
              found.differing);
}

// Empty where not all ranks live to tell: that they differ is the better news.
std::vector<std::string> ProcessGroup::State::labels_of(const Collective& collective) const {
  Collective telling = collective;
  telling.timeout = std::min<std::chrono::milliseconds>(telling.timeout, std::chrono::seconds(2));
  try {
    return backend_->labels(telling);
  } catch (const Error&) {
    return {};
  }
}

void ProcessGroup::State::execute(Collective& collective) {
  if (collective.signature.layout != uneven_pairs)
    return perform(collective, [this](const Collective& entered) { complete(entered); });
  Collective announced = collective;  // The backend cannot know enough of the buffers yet.
  announced.only_says = true;
  announced.counts = {};
  perform(announced, [&](const Collective& entered) {
    collective.sequence = entered.sequence;
    all_to_all_of_uneven_parts(collective);
  });
}

void ProcessGroup::State::complete(const Collective& collective) {
  const Signature& signature = collective.signature;
  if (is_on_device(collective) ||
      backend_->native(signature.operation, signature.dtype, signature.op))
    backend_->run(collective);
  else
    compose([this](const Collective& inner) { run_native(inner); }, collective, rank_, size_);
}

void ProcessGroup::State::run_native(const Collective& collective) {
  backend_->enter(collective);
  throw_unless_all_agree(collective);
  backend_->run(collective);
}

void ProcessGroup::State::all_gather_words(const Collective& outer,
                                           std::span<const std::int64_t> mine,
                                           std::vector<std::int64_t>& all) {
  all.resize(mine.size() * static_cast<std::size_t>(size_));
  Collective inner = outer;
  inner.signature = {
      .count = mine.size(), .operation = Operation::all_gather, .dtype = DType::int64};
  inner.input = buffer_of(mine);
  inner.output = buffer_of(all);
  inner.counts = {};
  run_native(inner);
}

// Each rank knows its own row and column only: all of them learn the whole table, and see that
// what one sends is what the other receives.
void ProcessGroup::State::all_to_all_of_uneven_parts(const Collective& collective) {
  const auto n = static_cast<std::size_t>(size_);
  const std::vector<std::int64_t> mine(collective.counts.begin(), collective.counts.end());
  std::vector<std::int64_t> all;
  all_gather_words(collective, mine, all);
  Counts pairs(n * n);
  for (std::size_t s = 0; s < n; ++s)
    for (std::size_t d = 0; d < n; ++d) {
      const std::int64_t sent = all[s * 2 * n + d];
      const std::int64_t received = all[d * 2 * n + n + s];
      if (sent != received)
        throw Error(Fault::mismatch,
                    fmt::format("{}: rank {} sends {} elements to rank {}, which receives {} from "
                                "it",
                                context(collective), s, sent, d, received),
                    s == d ? std::vector{static_cast<int>(s)}
                           : std::vector{static_cast<int>(std::min(s, d)),
                                         static_cast<int>(std::max(s, d))});
      pairs[s * n + d] = static_cast<std::size_t>(sent);
    }
  Collective inner = collective;
  inner.signature.count = std::accumulate(pairs.begin(), pairs.end(), std::size_t{0});
  inner.counts = pairs;
  run_native(inner);
}

// The right to enter `collective`, whose timeout becomes what the calls before it have left of it.
std::unique_lock<Turn> ProcessGroup::State::take_turn(Collective& collective) {
  require_own_process();
  std::unique_lock turn(order_, std::try_to_lock);
  if (!turn || !progress_.is_idle()) {
    const Deadline deadline = in(collective.timeout);
    const bool came =
        (turn || turn.try_lock_until(deadline)) && progress_.wait_until_idle(deadline);
    if (!came) {
      throw_if_broken();
      require_usable();
      std::rethrow_exception(end_with(
          Fault::timeout, fmt::format("{} waited {:.1f} s for earlier calls of this group",
                                      lockstep::name(collective.signature.operation),
                                      static_cast<double>(collective.timeout.count()) / 1000)));
    }
    collective.timeout = until(deadline);
  }
  require_usable();
  return turn;
}

void ProcessGroup::State::run(Collective&& collective, const CallOptions& options) {
  apply(options, collective);
  const auto turn = take_turn(collective);
  require_possible(collective);
  execute(collective);
}

Work ProcessGroup::State::submit(Collective collective, std::shared_ptr<const Counts> counts,
                                 const CallOptions& options) {
  require_own_process();
  apply(options, collective);
  const std::lock_guard lock(order_);
  require_usable();
  require_possible(collective);
  return progress_.submit([this, collective, owned = std::move(counts),
                           label = std::string(collective.label),
                           kept = options.keep_alive]() mutable {
    collective.label = label;
    execute(collective);
  });
}

RegisteredMemory ProcessGroup::State::allocate(Operation operation, std::size_t bytes,
                                               const CallOptions& options) {
  Collective collective{.signature = {.count = bytes, .operation = operation}};
  apply(options, collective);
  const auto turn = take_turn(collective);
  Backend::Allocation allocation;
  perform(collective, [&](Collective& entered) { allocation = backend_->allocate(entered); });
  if (!allocation.refusal.empty())
    throw Error(Fault::system, fmt::format("{}: {}", context(collective), allocation.refusal));
  return allocation.memory;
}

// --- Messages -----------------------------------------------------------------------------------

std::shared_ptr<PointToPoint> ProcessGroup::State::usable_messages() {
  require_own_process();
  const std::lock_guard lock(life_mutex_);
  require_usable();
  throw_if_broken();
  return point_to_point_;
}

Source ProcessGroup::State::message(const std::shared_ptr<Message>& message,
                                    const CallOptions& options) {
  const auto messages = usable_messages();
  const auto timeout = timeout_of(options);
  const auto done = recording(message, timeout);
  try {
    messages->run(
        message, [&] { return describe(*message); }, in(timeout));
  } catch (...) {
    done(std::current_exception());
    throw;
  }
  done(nullptr);
  return {message->peer, message->tag};
}

Work ProcessGroup::State::message_async(const std::shared_ptr<Message>& message,
                                        const CallOptions& options) {
  const auto messages = usable_messages();
  const auto timeout = timeout_of(options);
  const auto done = recording(message, timeout);
  try {
    return messages->start(
        message, describe(*message), in(timeout),
        [done, kept = options.keep_alive](std::exception_ptr error) { done(error); });
  } catch (...) {
    done(std::current_exception());
    throw;
  }
}

PointToPoint::Done ProcessGroup::State::recording(const std::shared_ptr<Message>& message,
                                                  std::chrono::milliseconds timeout) {
  const Signature signature{.count = message->buffer.count,
                            .label = static_cast<std::uint64_t>(message->tag),
                            .root = message->peer,
                            .operation = message->operation,
                            .dtype = message->buffer.dtype};
  const std::lock_guard lock(messages_mutex_);
  const std::uint64_t number = messages_.enter(signature, ++messages_begun_, ticks_now());
  return [weak = weak_from_this(), number, message, timeout](std::exception_ptr error) {
    const auto state = weak.lock();  // The group may have gone with what the message kept alive.
    if (state) state->note_end(number, *message, error, timeout);
  };
}

void ProcessGroup::State::note_end(std::uint64_t number, const Message& message,
                                   std::exception_ptr error, std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(messages_mutex_);
    using Phase = FlightRecorder::Phase;
    messages_.leave(number, error ? Phase::failed : Phase::completed, ticks_now());
  }
  if (error && !destroyed_) break_with(error, describe(message), timeout);
}

std::string ProcessGroup::State::describe(const Message& message) const {
  const bool sends = message.operation == Operation::send;
  const auto peer = message.peer == any_source ? "any rank" : fmt::format("rank {}", message.peer);
  const auto tag = message.tag == any_tag ? "any tag" : fmt::format("tag {}", message.tag);
  return fmt::format("{} of {} {} {} {} with {} in group {} on rank {}",
                     lockstep::name(message.operation), message.buffer.count,
                     lockstep::name(message.buffer.dtype), sends ? "to" : "from", peer, tag, name_,
                     rank_);
}

// --- Sub-groups ---------------------------------------------------------------------------------

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::split(std::optional<int> color, int key,
                                                                std::uint64_t layout,
                                                                const CallOptions& options) {
  Collective collective{.signature = {.layout = layout, .operation = Operation::split}};
  apply(options, collective);
  const auto turn = take_turn(collective);
  collective.signature.count = ++splits_;
  std::shared_ptr<State> child;
  perform(collective, [&](Collective& entered) {
    const std::int64_t mine[] = {color.has_value(), color.value_or(0), key};
    std::vector<std::int64_t> all;
    all_gather_words(entered, mine, all);
    if (!color) return;
    std::vector<std::pair<std::int64_t, int>> members;  // Key and rank.
    for (int peer = 0; peer < size_; ++peer) {
      const std::int64_t* theirs = &all[static_cast<std::size_t>(peer) * 3];
      if (theirs[0] != 0 && theirs[1] == *color) members.emplace_back(theirs[2], peer);
    }
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& [order, member] : members) ranks.push_back(member);
    const std::string label = options.label.empty() ? "" : fmt::format(".{}", collective.label);
    const std::string suffix = layout == 0 ? fmt::format(":{}", *color) : "";
    child = make_child(ranks, fmt::format("{}.{}{}{}", name_, splits_, label, suffix), entered);
  });
  if (child) children_.push_back(child);
  return child;
}

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::make_child(
    const std::vector<int>& members, std::string name, const Collective& collective) {
  std::erase_if(children_, [](const auto& weak) { return weak.expired(); });
  const auto own = std::find(members.begin(), members.end(), rank_);
  Parts parts;
  try {
    parts.backend = backend_->among(members, name, collective.timeout);
  } catch (const GroupGivenUp&) {  // This group was, and those are its own ranks.
    throw;
  } catch (const Error& error) {
    if (error.ranks().empty()) throw;
    std::vector<int> ranks;  // As this group calls them.
    for (const int rank : ranks_within(error.ranks(), static_cast<int>(members.size())))
      ranks.push_back(members[static_cast<std::size_t>(rank)]);
    throw Error(error.fault(), bare_text(error), std::move(ranks));
  }
  for (const int member : members) parts.members.push_back(world_rank(member));
  parts.rank = static_cast<int>(own - members.begin());
  parts.size = static_cast<int>(members.size());
  parts.name = std::move(name);
  parts.timeout = timeout_;
  parts.activity = activity_;
  parts.rank_wide = rank_wide_;
  return make(std::move(parts));
}

// --- The end ------------------------------------------------------------------------------------

void ProcessGroup::State::leave() {
  require_own_process();
  run_last_acts();
  Collective collective{.signature = {.operation = Operation::destroy}, .timeout = timeout_};
  const auto turn = take_turn(collective);
  perform(collective, [&](Collective& entered) {
    // Now that all are here, nobody sends or receives any more.
    entered.signature.count = point_to_point_->pending();
    backend_->enter(entered);
    for (int peer = 0; peer < size_; ++peer)
      if (backend_->entered(peer).count != 0)
        throw Error(Fault::mismatch,
                    fmt::format("{}: rank {} called {}", context(entered), peer,
                                lockstep::describe(backend_->entered(peer))),
                    {peer});
  });
  finish_();
  retire();
}

// Ends the use of all that is shared with other ranks, though handles may live on.
void ProcessGroup::State::retire() {
  destroyed_ = true;
  for (const auto& weak : children_)
    if (const auto child = weak.lock()) {
      const std::lock_guard lock(child->order_);
      child->progress_.wait_until_idle(no_deadline);
      if (!child->destroyed_) child->retire();
    }
  point_to_point_->end(
      std::make_exception_ptr(Error(Fault::misuse, fmt::format("group {} was destroyed", name_))));
  std::shared_ptr<PointToPoint> messages;
  const std::lock_guard lock(life_mutex_);
  messages.swap(point_to_point_);
  backend_.reset();
  activity_.reset();
}

void ProcessGroup::State::abort(std::string_view reason) {
  require_own_process();
  if (is_broken_) return;  // All ranks know why, or learn it.
  end_with(Fault::aborted, reason);
}

// Ends all calls, here and on the other ranks, with the Error that is returned.
std::exception_ptr ProcessGroup::State::end_with(Fault fault, std::string_view reason) {
  const auto error = std::make_exception_ptr(
      Error(fault, fmt::format("group {}: rank {}: {}", name_, rank_, reason)));
  give_up({.fault = fault, .rank = rank_, .reason = std::string(reason)});
  std::unique_lock lock(life_mutex_);
  const auto messages = point_to_point_;
  lock.unlock();
  if (!messages) return error;  // Destroyed: there is nothing to end.
  messages->end(error);
  break_with(error, fmt::format("group {}", name_), {});
  return error;
}

}  // namespace lockstep
