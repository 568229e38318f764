// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/barrier.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/spin_pause.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/pipe.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {
namespace {

// After a rank of another host has left, data from ranks that have not may still be in transit.
constexpr std::chrono::seconds time_for_others{1};

// Yields before a rank sleeps, when there are too few cores.
constexpr int yields = 20;

// Inside a call, peers read 1 MB in less time than this rank takes to wake, some 40 us.
constexpr std::chrono::microseconds spin_in_call{200};

// The job control block may show a rank's end before its reason arrives by a connection:
// docs/internals/failures.md.
constexpr std::chrono::milliseconds time_for_reason{200};

// Spins before a rank that waits for a message checks for ranks on its core.
constexpr int spins_before_a_look = 200;

bool outnumber_cores(const GroupSegment& segment, int ranks) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < ranks; ++rank) CPU_OR(&all, &all, &segment.block(rank).cores);
  return CPU_COUNT(&all) < ranks;
}

std::vector<int> numbers_of(const Peers& peers, const std::vector<int>& ranks) {
  std::vector<int> numbers;
  for (const int rank : ranks) numbers.push_back(peers.number(rank));
  return numbers;
}

// The living rank of this host that aborted the group by destroying its last handle. The job's
// report names that rank, by `Failure::ranks`, if this process ends because of it.
Failure failure_of(const GroupSegment::Common& common, Peers& peers) {
  const int slot = peers.slot(common.giver);
  Failure failure{.rank = slot, .host = host_name(), .pid = common.pid};
  note_latest(failure, peers.activity(common.giver));
  failure.detected_by = peers.slot(peers.rank());
  failure.left = true;
  failure.ranks = {slot};
  return failure;
}

// Whether the lost rank may have aborted the group before its end. A killed rank has not. If its
// connection has ended, the reason came before.
bool may_have_aborted(const Error& loss) {
  const auto& failure = loss.failure();
  if (!failure) return true;
  const bool was_killed = failure->signal && *failure->signal != SIGABRT;
  return !was_killed && failure->connection.empty();
}

bool spin(const Flag& flag, std::uint32_t target, int spins, bool in_call) {
  std::optional<Deadline> end;
  do {
    for (int i = 0; i < spins; ++i) {
      spin_pause();
      if (flag.reached(target)) return true;
    }
    if (in_call && !end) end = Clock::now() + spin_in_call;
  } while (in_call && Clock::now() < *end);
  return false;
}

bool yield(const Flag& flag, std::uint32_t target) {
  for (int i = 0; i < yields; ++i) {
    ::sched_yield();
    if (flag.reached(target)) return true;
  }
  return false;
}

}  // namespace

Barrier::Barrier(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group,
                 std::chrono::milliseconds timeout, std::function<void()> watch)
    : peers_(std::move(peers)),
      segment_(segment),
      group_(std::move(group)),
      rank_(peers_->rank()),
      size_(peers_->size()),
      shares_core_(segment_, &RankBlock::core, rank_, size_),
      shares_core_in_messages_(segment_, &RankBlock::message_core, rank_, size_),
      watch_(std::move(watch)),
      named_stalled_(static_cast<std::size_t>(size_)) {
  ::sched_getaffinity(0, sizeof(cpu_set_t), &segment_.block(rank_).cores);
  const Collective making{.signature = {.operation = Operation::none}, .timeout = timeout};
  try {
    step(making);
  } catch (const Error& error) {  // Ranks that come later do not count this rank.
    abort(abort_reason_for(error, peers_->number(rank_), context(making)));
    throw;
  }
  watch_ = nullptr;
  crowded_ = outnumber_cores(segment_, size_);
  spins_ = crowded_ ? 0 : 2000;
}

void Barrier::enter(const Collective& collective) {
  ++entries_;
  shares_core_.note();
  deadline_.reset();
  overslept_ = {};
  const auto flag_of = [this](int peer) -> Flag& {
    return segment_.block(peer).entry[entries_ & 1].arrived;
  };
  last_to_enter_ = await_all(flag_of, entries_, collective, /*in_call=*/false);
  // A rank that came and then failed may have returned: its memory must no longer be written.
  if (is_aborted() && !abort_reason()->is_own_loss()) throw_if_over(context(collective));
}

void Barrier::step(const Collective& collective) {
  ++steps_;
  await_all([this](int peer) -> Flag& { return segment_.block(peer).step; }, steps_, collective,
            /*in_call=*/true);
}

// docs/algorithms.md describes both branches. Returns last_to_enter().
template <class FlagOf>
std::optional<int> Barrier::await_all(FlagOf flag_of, std::uint32_t target,
                                      const Collective& collective, bool in_call) {
  const auto absent = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < size_; ++peer)
      if (!flag_of(peer).reached(target)) ranks.push_back(peer);
    return ranks;
  };
  if (!crowded_) {
    raise(flag_of(rank_), target);
    std::optional<int> last;  // The awaited rank is later than all before it.
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !flag_of(peer).reached(target)) {
        if (shares_core_.with(peer) || !spin(flag_of(peer), target, spins_, in_call))
          await_asleep(flag_of(peer), target, collective, absent);
        last = peer;
      }
    return last;
  }
  flag_of(rank_).value.store(target, std::memory_order_release);
  auto& common = segment_.common();
  ++rounds_;
  if (common.arrivals.fetch_add(1) + 1 == rounds_ * static_cast<std::uint32_t>(size_)) {
    common.last.store(rank_, std::memory_order_relaxed);
    raise(common.all_here, rounds_);
    return std::nullopt;
  }
  if (!common.all_here.reached(rounds_) && !yield(common.all_here, rounds_))
    await_asleep(common.all_here, rounds_, collective, absent);
  return common.last.load(std::memory_order_relaxed);
}

void Barrier::raise(Flag& flag, std::uint32_t value) const {
  flag.value.store(value);  // Before the load: a rank about to sleep must not be missed.
  if (flag.sleepers.load() != 0) futex_wake_all(flag.value);
}

template <class Absent>
void Barrier::await_asleep(Flag& flag, std::uint32_t target, const Collective& collective,
                           Absent absent) {
  const auto begin = Clock::now();
  if (!deadline_) deadline_ = in(collective.timeout);
  int fair_slices = 0;  // Since this process was last descheduled.
  for (auto before = begin;;) {
    flag.sleepers.fetch_add(1);
    const std::uint32_t seen = flag.value.load();
    if (!flag.reached(target)) futex_wait(flag.value, seen, wait_slice);
    flag.sleepers.fetch_sub(1);
    if (flag.reached(target)) return;

    const auto now = Clock::now();
    const bool fair = now - before < unfair_slice;
    if (!fair) overslept_ += now - before;
    fair_slices = fair ? fair_slices + 1 : 0;
    before = now;
    const std::string context = this->context(collective);
    if (watch_) watch_();  // First: it may have a better reason.
    throw_if_waited_in_vain(absent(), context);
    throw_if_they_left(absent, context);
    throw_if_over(context);
    if (now - begin > std::chrono::milliseconds(200)) report_stalled(absent(), context);
    if (*deadline_ == no_deadline || now < *deadline_ + overslept_) continue;
    if (fair_slices < enough_slices) continue;  // The peers may have been stopped, too.
    throw_timeout(absent(), context, begin);
  }
}

void Barrier::report_stalled(const std::vector<int>& absent, const std::string& context) {
  for (const int peer : absent) {
    const auto stall = peers_->stall_of(peer);
    const auto known = named_stalled_[static_cast<std::size_t>(peer)];
    if (stall && !known)
      log(LogLevel::warning,
          fmt::format("{} waits for {}: it is {}", context, peers_->describe(peer), *stall));
    named_stalled_[static_cast<std::size_t>(peer)] = stall.has_value();
  }
}

std::string Barrier::describe(const std::vector<int>& absent) const {
  std::string text;
  for (const int peer : absent) {
    const auto stall = peers_->stall_of(peer);
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", peers_->describe(peer),
                        stall ? ", is " : "", stall.value_or(""));
  }
  return text;
}

// Other processes write this memory too, so impossible numbers are omitted.
std::optional<AbortReason> Barrier::abort_reason(std::chrono::milliseconds limit) const {
  constexpr std::chrono::milliseconds pause{1};
  const auto& common = segment_.common();
  for (const Deadline deadline = in(limit); !is_aborted() && Clock::now() < deadline;)
    std::this_thread::sleep_for(pause);
  if (common.abort_state.load() != 2) return std::nullopt;
  AbortReason why{.fault = common.fault,
                  .rank = common.rank,
                  .more = std::max(0, common.more),
                  .call = common.call,
                  .reason = common.reason};
  const auto blamed = std::clamp<std::int32_t>(common.blamed, 0, most_blamed);
  why.ranks = ranks_within({common.ranks, common.ranks + blamed}, std::numeric_limits<int>::max());
  return why;
}

bool Barrier::is_missed_elsewhere(const std::vector<int>& absent) const {
  const auto why = abort_reason();
  if (!why) return segment_.common().is_awaited_in_vain.load() != 0;
  if (segment_.common().giver >= 0 || why->fault != Fault::timeout) return false;
  if (why->ranks.empty() || why->more > 0) return true;
  return std::any_of(absent.begin(), absent.end(), [&](int rank) {
    return std::binary_search(why->ranks.begin(), why->ranks.end(), peers_->number(rank));
  });
}

// An aborting rank publishes the ranks it waited for. It may have exited since.
void Barrier::throw_if_waited_in_vain(const std::vector<int>& absent,
                                      const std::string& context) const {
  if (absent.empty()) return;
  const auto text = [&] { return fmt::format("{}: without {}", context, describe(absent)); };
  if (is_missed_elsewhere(absent))
    throw Error(Fault::timeout, text() + ": ranks of another host wait no longer",
                numbers_of(*peers_, absent));
  const auto why = abort_reason();
  if (!why) return;
  // Ranks that aborted because of a stopped rank on this host cannot see that it is stopped.
  const bool stalled =
      std::ranges::any_of(absent, [&](int peer) { return peers_->stall_of(peer).has_value(); });
  if (why->fault != Fault::timeout && !(why->fault == Fault::aborted && stalled)) return;
  // Otherwise the reason describes them.
  const bool adds = stalled || !std::ranges::includes(why->ranks, numbers_of(*peers_, absent));
  throw GroupAborted(adds ? text() : context, *why);
}

// A rank leaves after its last call: an absent rank that has left never comes. An earlier abort's
// reason takes precedence.
template <class Absent>
void Barrier::throw_if_they_left(Absent absent, const std::string& context) const {
  std::vector<int> left;
  for (int peer = 0; peer < size_; ++peer)
    if (has_left(peer)) left.push_back(peer);
  if (left.empty()) return;
  if (is_aborted()) {  // Only then is `giver` valid.
    const int giver = segment_.common().giver;
    if (giver < 0 || has_left(giver)) return;
  }
  const std::vector<int> missing = absent();
  std::erase_if(left, [&](int rank) { return !std::ranges::binary_search(missing, rank); });
  if (left.empty()) return;
  peers_->throw_if_lost(context);  // A loss may have made them leave.
  throw error_of_the_left(context, numbers_of(*peers_, left), group_,
                          peers_->why_left(left.front()));
}

void Barrier::throw_timeout(const std::vector<int>& absent, const std::string& context,
                            Clock::time_point since) const {
  throw Error(
      Fault::timeout,
      fmt::format("{}: {} of {} ranks did not come in time (after a timeout of {:.1f} s): {}",
                  context, absent.size(), size_, seconds_since(since), describe(absent)),
      numbers_of(*peers_, absent));
}

void Barrier::await_doorbell(std::uint32_t seen, std::chrono::nanoseconds time) {
  Flag& mine = segment_.block(rank_).doorbell;
  for (int i = 0; i < spins_; ++i) {
    if (mine.value.load(std::memory_order_acquire) != seen) return;
    if (i == spins_before_a_look && shares_core_in_messages_.with_any()) break;
    spin_pause();
  }
  mine.sleepers.fetch_add(1);
  if (mine.value.load() == seen) futex_wait(mine.value, seen, time);
  mine.sleepers.fetch_sub(1);
}

void Barrier::ring(int rank) const {
  Flag& bell = segment_.block(rank).doorbell;
  bell.value.fetch_add(1);
  if (bell.sleepers.load() != 0) futex_wake_all(bell.value);
}

void Barrier::leave() const {
  segment_.block(rank_).left.store(1);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) ring(peer);  // Ranks that wait for its messages.
}

void Barrier::abort(const AbortReason& why, bool by_this_rank) const {
  auto& common = segment_.common();
  std::uint32_t none = 0;
  if (!common.abort_state.compare_exchange_strong(none, 1)) return;
  common.giver = by_this_rank ? rank_ : -1;
  common.pid = ::getpid();
  common.aborted_at = Clock::now().time_since_epoch().count();
  common.fault = why.fault;
  common.rank = why.rank;
  const std::size_t blamed = std::min(why.ranks.size(), most_blamed);
  common.more = why.more + static_cast<int>(why.ranks.size() - blamed);
  std::copy_n(why.ranks.begin(), blamed, common.ranks);
  common.blamed = static_cast<std::int32_t>(blamed);
  copy_text(common.call, cut_text(why.call, sizeof common.call - 1));
  copy_text(common.reason, cut_text(why.reason, sizeof common.reason - 1));
  common.abort_state.store(2);
}

void Barrier::throw_if_over(const std::string& context) const {
  const auto& common = segment_.common();
  // A rank that aborts the group may exit for the same reason. A rank may leave because another was
  // lost.
  const auto why = abort_reason();
  if (why && why->fault != Fault::peer_lost) throw GroupAborted(context, *why);
  try {
    peers_->throw_if_lost(context);
  } catch (const Error& loss) {
    if (why || !may_have_aborted(loss)) throw;
    const auto cause =
        abort_reason(peers_->is_part_of_group() ? time_for_reason : time_for_reason * 0);
    if (cause && cause->fault != Fault::peer_lost) throw GroupAborted(context, *cause);
    throw;
  }
  if (!why) return;
  if (!why->is_own_loss()) throw GroupAborted(context, *why);
  const auto aborted_at = Clock::time_point(Clock::duration(common.aborted_at));
  if (common.giver < 0 && Clock::now() - aborted_at < time_for_others) return;
  const GroupAborted aborted(context, *why);
  if (common.giver < 0) throw aborted;
  throw Error(bare_text(aborted), failure_of(common, *peers_));
}

std::string Barrier::context(const Collective& collective) const {
  if (collective.signature.operation == Operation::none)
    return fmt::format("making group {} on rank {}", group_, peers_->number(rank_));
  return describe_call(collective, group_, peers_->number(rank_));
}

}  // namespace lockstep::comm
