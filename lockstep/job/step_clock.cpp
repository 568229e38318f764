// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/step_clock.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/job/timeline_recorder.h"

namespace lockstep {
namespace {

thread_local StepClock* of_thread = nullptr;
std::atomic<bool> is_process_taken{false};

struct Adoption {
  bool has_it = false;

  void try_to_get_it() { has_it = has_it || !is_process_taken.exchange(true); }
  ~Adoption() {
    if (has_it) is_process_taken = false;
  }
};

template <class Value>
void put(std::atomic<Value>& where, Value value) {
  where.store(value, std::memory_order_release);  // After earlier stores, for times().
}

template <class Value>
Value get(const std::atomic<Value>& where) {
  return where.load(std::memory_order_acquire);
}

std::size_t index(StepPhase phase) { return static_cast<std::size_t>(phase); }

}  // namespace

StepClock* StepClock::of_this_thread() { return of_thread; }

StepClock& StepClock::of_process() {
  static StepClock& clock = *new StepClock;  // Other threads may read it during exit.
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { clock.end_interrupted_change(); });
  static_cast<void>(registered);
  return clock;
}

StepClock* StepClock::adopted() {
  if (of_thread != nullptr) return of_thread;
  thread_local Adoption adoption;
  adoption.try_to_get_it();
  if (adoption.has_it) of_thread = &of_process();
  return of_thread;
}

// times() retries if the version was odd or has changed.
template <class Change>
void StepClock::change(Change change) {
  const std::uint64_t before = version_.load(std::memory_order_relaxed);
  version_.store(before + 1, std::memory_order_relaxed);
  change();
  put(version_, before + 2);
}

// For a fork()ed child, without the thread that changed the clock. The time since the last change
// may count twice.
void StepClock::end_interrupted_change() {
  const std::uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + version % 2, std::memory_order_relaxed);
}

void StepClock::spend(StepPhase phase, Ticks until) {
  const Ticks since = since_.load(std::memory_order_relaxed);
  if (since != 0 && until > since) {
    auto& sum = spent_[index(phase)];
    put(sum, sum.load(std::memory_order_relaxed) + (until - since));
    if (TimelineRecorder* const recorder = TimelineRecorder::current(); recorder != nullptr)
      record(*recorder, phase, since, until);
  }
  put(since_, until);
}

void StepClock::record(TimelineRecorder& recorder, StepPhase phase, Ticks begin, Ticks end) const {
  if (phase != StepPhase::other && this == &of_process()) recorder.phase(phase, begin, end);
}

StepPhase StepClock::enter(StepPhase next, Ticks now) {
  const StepPhase before = phase_.load(std::memory_order_relaxed);
  change([&] {
    spend(before, now);
    put(phase_, next);
  });
  return before;
}

void StepClock::end_wait(std::optional<int> last, Ticks now) {
  change([&] {
    if (last) {
      const Ticks waited = now - since_.load(std::memory_order_relaxed);
      auto& sum = waited_[std::min(static_cast<std::size_t>(*last), most_ranks - 1)];
      put(sum, sum.load(std::memory_order_relaxed) + waited);
      spend(StepPhase::wait, now);
    }
    put(phase_, StepPhase::reduce);
  });
}

void StepClock::count_step() {
  if (steps_.fetch_add(1, std::memory_order_relaxed) != 0) return;
  first_step_ = times();
  put(first_step_is_known_, true);
}

StepTimes StepClock::since_first_step() const {
  return get(first_step_is_known_) ? times() - first_step_ : StepTimes{};
}

StepTimes StepClock::times() const {
  std::array<Ticks, step_phases> spent{};
  std::array<Ticks, most_ranks> waited{};
  std::uint64_t version = 0;
  const auto has_changed = [&] {
    return version % 2 != 0 || version_.load(std::memory_order_relaxed) != version;
  };
  for (bool first = true; first || has_changed(); first = false) {
    if (!first) std::this_thread::yield();
    version = get(version_);
    std::transform(spent_.begin(), spent_.end(), spent.begin(), get<Ticks>);
    std::transform(waited_.begin(), waited_.end(), waited.begin(), get<Ticks>);
    const Ticks since = get(since_);
    const Ticks now = ticks_now();
    if (since != 0 && now > since) spent[index(get(phase_))] += now - since;
  }
  StepTimes times{.steps = steps_.load(std::memory_order_relaxed)};
  std::transform(spent.begin(), spent.end(), times.spent.begin(), time_in);
  for (std::size_t rank = 0; rank < most_ranks; ++rank)
    if (waited[rank] != 0) times.waited_for[static_cast<int>(rank)] = time_in(waited[rank]);
  return times;
}

std::array<Ticks, step_phases> StepClock::spent_until(Ticks now) const {
  constexpr auto relaxed = std::memory_order_relaxed;
  std::array<Ticks, step_phases> spent{};
  for (std::size_t i = 0; i < step_phases; ++i) spent[i] = spent_[i].load(relaxed);
  const Ticks since = since_.load(relaxed);
  if (since != 0 && now > since) spent[index(phase_.load(relaxed))] += now - since;
  return spent;
}

StepClock::OfThread::OfThread() { of_thread = &clock_; }

StepClock::OfThread::~OfThread() { of_thread = nullptr; }

StepClock::Lent::Lent() : clock_(of_this_thread()), begin_(ticks_now()) {
  if (clock_ == nullptr) return;
  before_ = clock_->enter(StepPhase::reduce, begin_);
  clock_->lent_since_ = begin_;
}

// The other thread's wait counts as the first part of the time.
StepClock::Lent::~Lent() {
  if (clock_ == nullptr) return;
  const Ticks now = ticks_now();
  clock_->lent_since_ = 0;
  const Ticks waited = std::min(clock_->lent_wait_.exchange(0), now - begin_);
  if (waited != 0) clock_->end_wait(clock_->lent_last_, begin_ + waited);
  clock_->enter(before_, now);
}

void StepClock::book_wait_of_helper(int last, Ticks begin, Ticks end) {
  StepClock& clock = of_process();
  const Ticks since = clock.lent_since_;
  if (since == 0 || end <= since) return;
  clock.lent_last_ = last;  // First: a loop that sees the wait attributes it to this rank.
  clock.lent_wait_ += end - std::max(begin, since);
}

void SharedStepTimes::show(const StepTimes& times) {
  constexpr auto relaxed = std::memory_order_relaxed;
  steps_.store(times.steps, relaxed);
  for (std::size_t i = 0; i < step_phases; ++i) spent_[i].store(times.spent[i].count(), relaxed);
  std::vector<std::pair<int, std::chrono::nanoseconds>> waits(times.waited_for.begin(),
                                                              times.waited_for.end());
  waits.resize(std::max(waits.size(), most_waits));
  std::ranges::partial_sort(waits, waits.begin() + most_waits, std::ranges::greater(),
                            [](const auto& wait) { return wait.second; });
  for (std::size_t i = 0; i < most_waits; ++i) {
    waits_[i].rank.store(waits[i].first, relaxed);
    waits_[i].time.store(waits[i].second.count(), relaxed);
  }
}

StepTimes SharedStepTimes::shown() const {
  constexpr auto relaxed = std::memory_order_relaxed;
  StepTimes times{.steps = steps_.load(relaxed)};
  for (std::size_t i = 0; i < step_phases; ++i)
    times.spent[i] = std::chrono::nanoseconds(spent_[i].load(relaxed));
  for (const Wait& wait : waits_)
    if (const std::chrono::nanoseconds time(wait.time.load(relaxed)); time.count() > 0)
      times.waited_for[wait.rank.load(relaxed)] = time;
  return times;
}

StepTimes RecentTimes::since_then(StepTimes now) {
  constexpr std::size_t most = 10;
  if (past_.empty()) past_.emplace_back();
  StepTimes recent = now - past_.front();
  past_.push_back(std::move(now));
  if (past_.size() > most) past_.pop_front();
  return recent;
}

}  // namespace lockstep
