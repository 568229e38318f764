// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "lockstep/comm/bare_text.h"
#include "lockstep/comm/before_end.h"
#include "lockstep/comm/compose.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/log.h"

namespace lockstep {
namespace {

// After these, ranks may no longer agree on where they are, and those that did not see the Error
// would wait for ever.
bool must_be_told(const Error& error) {
  if (error.fault() == Fault::peer_lost) return !error.failure();  // Else all learn who it was.
  return error.fault() != Fault::aborted;
}

std::uint64_t tag_of(const CallOptions& options) {
  return options.tag.empty() ? 0 : hash_of(options.tag.data(), options.tag.size());
}

}  // namespace

ProcessGroup::State::State(Parts parts)
    : pid_(::getpid()),
      rank_(parts.rank),
      size_(parts.size),
      local_(parts.backend->local()),
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
  if (!backend_ || ::getpid() != pid_) return;  // A fork()ed child has no part in it.
  abandon_();  // First, so that peers learn of the rank and not only that the group is over.
  backend_->give_up(Fault::peer_lost,
                    fmt::format("rank {} left it without destroy_process_group()", rank_));
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
  collective.signature.tag = tag_of(options);
  collective.timeout = timeout_of(options);
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

void ProcessGroup::State::break_with(std::exception_ptr error) {
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
    if (must_be_told(known)) {
      const bool same = known.fault() == Fault::mismatch || known.fault() == Fault::timeout;
      const Fault theirs = same ? known.fault() : Fault::aborted;
      backend_->give_up(theirs, fmt::format("rank {}: {}", rank_, bare_text(known)));
    }
  } catch (const std::exception& other) {
    what = other.what();
    backend_->give_up(Fault::aborted, fmt::format("rank {}: {}", rank_, what));
  }
  const FlightRecordHeader header{name_, rank_, size_, backend_name_, what};
  save_flight_record(header, lockstep::flight_record(header, collectives_, messages_));
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
    break_with(std::current_exception());
    throw;
  }
  const Ticks end = ticks_now();
  collectives_.leave(recorded, FlightRecorder::Phase::completed, end);
  activity_->leave(end);
}

// All ranks see the same signatures, so all of them name the same two.
void ProcessGroup::State::throw_unless_all_agree(const Collective& collective) const {
  const Signature& first = backend_->entered(0);
  for (int peer = 1; peer < size_; ++peer)
    if (backend_->entered(peer) != first) throw_mismatch(collective, 0, peer);
}

void ProcessGroup::State::throw_mismatch(const Collective& collective, int a, int b) const {
  throw Error(Fault::mismatch,
              fmt::format("{}: rank {} called {}, rank {} called {}", context(collective), a,
                          lockstep::describe(backend_->entered(a)), b,
                          lockstep::describe(backend_->entered(b))));
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
                                context(collective), s, sent, d, received));
      pairs[s * n + d] = static_cast<std::size_t>(sent);
    }
  Collective inner = collective;
  inner.signature.count = std::accumulate(pairs.begin(), pairs.end(), std::size_t{0});
  inner.counts = pairs;
  run_native(inner);
}

void ProcessGroup::State::run(Collective&& collective, const CallOptions& options) {
  const std::lock_guard lock(order_);
  require_usable();
  require_possible(collective);
  progress_.wait_until_idle();
  apply(options, collective);
  execute(collective);
}

Work ProcessGroup::State::submit(Collective collective, std::shared_ptr<const Counts> counts,
                                 const CallOptions& options) {
  const std::lock_guard lock(order_);
  require_usable();
  require_possible(collective);
  apply(options, collective);
  return progress_.submit([this, collective, owned = std::move(counts),
                           kept = options.keep_alive]() mutable { execute(collective); });
}

RegisteredMemory ProcessGroup::State::allocate(Operation operation, std::size_t bytes,
                                               const CallOptions& options) {
  const std::lock_guard lock(order_);
  require_usable();
  progress_.wait_until_idle();
  Collective collective{.signature = {.count = bytes, .operation = operation}};
  apply(options, collective);
  Backend::Allocation allocation;
  perform(collective, [&](Collective& entered) { allocation = backend_->allocate(entered); });
  if (!allocation.refusal.empty())
    throw Error(Fault::system, fmt::format("{}: {}", context(collective), allocation.refusal));
  return allocation.memory;
}

// --- Messages -----------------------------------------------------------------------------------

std::shared_ptr<PointToPoint> ProcessGroup::State::usable_messages() {
  const std::lock_guard lock(life_mutex_);
  require_usable();
  throw_if_broken();
  return point_to_point_;
}

Source ProcessGroup::State::message(const std::shared_ptr<Message>& message,
                                    const CallOptions& options) {
  const auto messages = usable_messages();
  const auto done = recording(message);
  try {
    messages->run(
        message, [&] { return describe(*message); }, in(timeout_of(options)));
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
  const auto done = recording(message);
  try {
    return messages->start(
        message, describe(*message), in(timeout_of(options)),
        [done, kept = options.keep_alive](std::exception_ptr error) { done(error); });
  } catch (...) {
    done(std::current_exception());
    throw;
  }
}

PointToPoint::Done ProcessGroup::State::recording(const std::shared_ptr<Message>& message) {
  const Signature signature{.count = message->buffer.count,
                            .tag = static_cast<std::uint64_t>(message->tag),
                            .root = message->peer,
                            .operation = message->operation,
                            .dtype = message->buffer.dtype};
  const std::lock_guard lock(messages_mutex_);
  const std::uint64_t number = messages_.enter(signature, ++messages_begun_, ticks_now());
  return [weak = weak_from_this(), number](std::exception_ptr error) {
    const auto state = weak.lock();  // The group may have gone with what the message kept alive.
    if (state) state->note_end(number, error);
  };
}

void ProcessGroup::State::note_end(std::uint64_t number, std::exception_ptr error) {
  {
    const std::lock_guard lock(messages_mutex_);
    using Phase = FlightRecorder::Phase;
    messages_.leave(number, error ? Phase::failed : Phase::completed, ticks_now());
  }
  if (error && !destroyed_) break_with(error);
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
  const std::lock_guard lock(order_);
  require_usable();
  progress_.wait_until_idle();
  Collective collective{
      .signature = {.count = ++splits_, .layout = layout, .operation = Operation::split}};
  apply(options, collective);
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
    const std::string suffix = layout == 0 ? fmt::format(":{}", *color) : "";
    child = make_child(ranks, fmt::format("{}.{}{}", name_, splits_, suffix), entered);
  });
  if (child) children_.push_back(child);
  return child;
}

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::make_child(
    const std::vector<int>& members, std::string name, const Collective& collective) {
  std::erase_if(children_, [](const auto& weak) { return weak.expired(); });
  const auto own = std::find(members.begin(), members.end(), rank_);
  Parts parts;
  parts.backend = backend_->among(members, name, collective.timeout);
  parts.rank = static_cast<int>(own - members.begin());
  parts.size = static_cast<int>(members.size());
  parts.name = std::move(name);
  parts.timeout = timeout_;
  parts.activity = activity_;
  parts.rank_wide = rank_wide_;
  return std::make_shared<State>(std::move(parts));
}

// --- The end ------------------------------------------------------------------------------------

void ProcessGroup::State::add_last_act(std::weak_ptr<const std::function<void()>> act) {
  const std::lock_guard lock(order_);
  last_acts_.push_back(std::move(act));
}

// Without the lock, as they may be waiting for calls of this group.
void ProcessGroup::State::run_last_acts() {
  std::unique_lock lock(order_);
  const auto acts = last_acts_;
  const auto children = children_;
  lock.unlock();
  for (const auto& weak : acts)
    if (const auto act = weak.lock()) (*act)();
  for (const auto& weak : children)
    if (const auto child = weak.lock()) child->run_last_acts();
}

void ProcessGroup::State::leave() {
  run_last_acts();
  const std::lock_guard lock(order_);
  require_usable();
  progress_.wait_until_idle();
  Collective collective{.signature = {.operation = Operation::destroy}};
  collective.timeout = timeout_;
  perform(collective, [&](Collective& entered) {
    // Now that all are here, nobody sends or receives any more.
    entered.signature.count = point_to_point_->pending();
    backend_->enter(entered);
    for (int peer = 0; peer < size_; ++peer)
      if (backend_->entered(peer).count != 0)
        throw Error(Fault::mismatch, fmt::format("{}: rank {} called {}", context(entered), peer,
                                                 lockstep::describe(backend_->entered(peer))));
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
      child->progress_.wait_until_idle();
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
  std::shared_ptr<Backend> backend;
  std::shared_ptr<PointToPoint> messages;
  {
    const std::lock_guard lock(life_mutex_);
    backend = backend_;
    messages = point_to_point_;
  }
  if (!backend) return;
  const Error error(Fault::aborted, fmt::format("group {}: rank {}: {}", name_, rank_, reason));
  backend->give_up(Fault::aborted, fmt::format("rank {}: {}", rank_, reason));
  messages->end(std::make_exception_ptr(error));
  break_with(std::make_exception_ptr(error));
}

void before_end(const ProcessGroup& group,
                const std::shared_ptr<const std::function<void()>>& act) {
  GroupAccess::state_of(group).add_last_act(act);
}

}  // namespace lockstep
