// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/job_control_block.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/job/oom_kills.h"
#include "lockstep/job/shared_value.h"

namespace lockstep {
namespace {

constexpr std::uint64_t magic = 0x5041474553504c3a;  // Changes with this layout.

constexpr std::size_t most_words = 1024;  // Bytes.

struct Words {
  std::int32_t fault;  // -1: not an Error of this library.
  char text[most_words + 1];
};

struct ExitReport {
  // Modulo 4: 0 none, 1 being written, 2 complete. A successor continues at a multiple of
  // 4.
  std::atomic<std::uint32_t> state;
  job::SharedValue<Words> value;
};

struct FailureValue {
  static constexpr std::int32_t no_peer = -2;

  enum class Cause : std::int32_t { unknown, exit_code, signal, left };

  std::int32_t rank;
  std::int32_t pid;
  Cause cause;
  std::int32_t value;
  std::int32_t oom;  // -1: unknown.
  std::int32_t detected_by;
  std::uint64_t sequence;
  std::int32_t peer;
  Clock::rep reported;  // Steady clock of the host.
  std::int32_t fault;   // -1 for none.
  std::int32_t blamed;  // Used entries of `ranks`.
  std::int32_t ranks[most_blamed];
  char call[256];
  char host[64];
  char operation[32];
  char group[sizeof(GroupName) + 1];
  char what[most_words + 1];
  std::uint64_t resumed;  // For a break: Activity::resumed then.
};

struct FailureRecord {
  // 0: empty. Odd: being written. Even: complete, new for each value.
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> forgotten;  // Up to this state, values are outdated.
  job::SharedValue<FailureValue> value;
};

// `meeting` is 0 while the value is being written.
struct Settings {
  std::int32_t world_size;
  char backend[48];
};

struct Announcement {
  std::atomic<std::int32_t> meeting;
  job::SharedValue<Settings> value;
};

struct Slot {
  alignas(64) pthread_mutex_t life;
  std::atomic<JobControlBlock::Phase> phase;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> started;  // Start time: identifies the process together with the pid.
  std::atomic<std::int32_t> expects_preemption;  // That process's pid.
  std::atomic<std::uint64_t> memory_number;
  std::atomic<std::uint32_t> memory_changes;
  std::atomic<bool> is_lost;  // The mutex had no living owner.
  // These three belong to the process that the agent started for this slot: enter() keeps them.
  std::atomic<bool> is_told_to_end;
  std::atomic<bool> awaits_group;
  FailureRecord end;
  alignas(64) Activity activity;
  alignas(64) StepReport steps;
  alignas(64) ExitReport words;
  Announcement announcement;
  FailureRecord broke;
  // Guarded by Layout::oom_mutex.
  std::int32_t judged_pid;  // The latest process that SIGKILL has ended; 0 for none.
  std::int32_t judged_oom;  // Whether by the OOM killer; -1 when unknown.
};

// Holds a robust mutex, unless a stopped process does. After its owner's death, the next owner
// continues: the guarded values have no invariant.
class RobustLock {
 public:
  explicit RobustLock(pthread_mutex_t& mutex) : mutex_(mutex) {
    timespec limit{};
    ::clock_gettime(CLOCK_MONOTONIC, &limit);
    ++limit.tv_sec;
    const int result = ::pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &limit);
    if (result == EOWNERDEAD) ::pthread_mutex_consistent(&mutex_);
    is_held_ = result == 0 || result == EOWNERDEAD;
  }
  ~RobustLock() {
    if (is_held_) ::pthread_mutex_unlock(&mutex_);
  }
  RobustLock(const RobustLock&) = delete;
  RobustLock& operator=(const RobustLock&) = delete;

  explicit operator bool() const { return is_held_; }

 private:
  pthread_mutex_t& mutex_;
  bool is_held_ = false;
};

// Locks the mutex of a slot without a running process; otherwise returns an error. A peer that
// calls lost() just after leave() holds the mutex for a moment, and may die meanwhile.
int take_over(Slot& slot) {
  int result = ::pthread_mutex_trylock(&slot.life);
  if (result == EBUSY && slot.phase != JobControlBlock::Phase::alive) {
    timespec limit{};
    ::clock_gettime(CLOCK_MONOTONIC, &limit);
    ++limit.tv_sec;
    result = ::pthread_mutex_clocklock(&slot.life, CLOCK_MONOTONIC, &limit);
  }
  if (result != EOWNERDEAD) return result;
  if (slot.phase != JobControlBlock::Phase::alive) return ::pthread_mutex_consistent(&slot.life);
  slot.is_lost = true;  // Before the unlock: see lost().
  ::pthread_mutex_unlock(&slot.life);
  return result;
}

void make_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = ::pthread_mutex_init(&mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (result != 0) throw_errno("making a robust mutex", result);
}

// Set from the start of the exit, long before waitpid() returns, until the process is reaped.
std::optional<int> wait_status_of(int pid, std::int64_t started) {
  const auto process = process_stat(pid);
  // The pid may be another process's now, or of another PID namespace.
  if (!process || process->started != started) return std::nullopt;
  return process->wait_status;
}

std::int32_t number_of(const std::optional<Fault>& fault) {
  return fault ? static_cast<std::int32_t>(*fault) : -1;
}

FailureValue value_of(const Failure& failure) {
  using Cause = FailureValue::Cause;
  FailureValue value{};
  value.rank = failure.rank;
  value.pid = failure.pid;
  value.cause = failure.signal      ? Cause::signal
                : failure.exit_code ? Cause::exit_code
                : failure.left      ? Cause::left
                                    : Cause::unknown;
  value.value = failure.signal.value_or(failure.exit_code.value_or(0));
  value.oom = failure.oom ? *failure.oom : -1;
  value.detected_by = failure.detected_by;
  value.sequence = failure.sequence;
  value.peer = failure.peer.value_or(FailureValue::no_peer);
  value.reported = Clock::now().time_since_epoch().count();
  value.fault = number_of(failure.fault);
  const std::size_t blamed = std::min(failure.ranks.size(), most_blamed);
  std::copy_n(failure.ranks.begin(), blamed, value.ranks);
  value.blamed = static_cast<std::int32_t>(blamed);
  copy_text(value.call, failure.call);
  copy_text(value.host, failure.host);
  copy_text(value.operation, failure.operation);
  copy_text(value.group, failure.group);
  copy_text(value.what, cut_text(failure.what, most_words));
  return value;
}

Failure failure_in(const FailureValue& value) {
  using Cause = FailureValue::Cause;
  Failure failure{.rank = value.rank, .host = value.host, .pid = value.pid};
  if (value.cause == Cause::signal) failure.signal = value.value;
  if (value.cause == Cause::exit_code) failure.exit_code = value.value;
  if (value.oom >= 0) failure.oom = value.oom == 1;
  failure.left = value.cause == Cause::left;
  failure.operation = value.operation;
  failure.sequence = value.sequence;
  if (value.peer != FailureValue::no_peer) failure.peer = value.peer;
  failure.group = value.group;
  failure.detected_by = value.detected_by;
  failure.what = value.what;
  if (value.fault >= 0) failure.fault = static_cast<Fault>(value.fault);
  const auto blamed = std::clamp<std::int32_t>(value.blamed, 0, most_blamed);
  failure.ranks.assign(value.ranks, value.ranks + blamed);
  failure.call = value.call;
  return failure;
}

std::optional<FailureValue> read(const FailureRecord& record) {
  while (true) {
    const std::uint32_t before = record.state;
    const bool is_complete = before % 2 == 0 && before > record.forgotten;
    if (!is_complete) return std::nullopt;
    const FailureValue value = record.value.load();
    if (record.state == before) return value;
  }
}

std::optional<Words> read(const ExitReport& words) {
  const std::uint32_t before = words.state;
  if (before % 4 != 2) return std::nullopt;
  const Words value = words.value.load();
  // Otherwise another process has the slot.
  return words.state == before ? std::optional(value) : std::nullopt;
}

// Async-signal-safe.
void record_once(FailureRecord& record, const Failure& failure) {
  std::uint32_t empty = 0;
  if (!record.state.compare_exchange_strong(empty, 1)) return;
  record.value.store(value_of(failure));
  record.state = 2;
}

}  // namespace

struct JobControlBlock::Layout {
  std::uint64_t magic;
  std::int32_t slots;
  std::int32_t world_size;
  char job_id[384];  // Fits torchrun's variables with the longest host name.
  std::atomic<bool> preemption_agreed;
  pthread_mutex_t oom_mutex;
  job::OomKills oom_kills;  // Guarded by `oom_mutex`.
  alignas(64) FailureRecord failure;
  alignas(64) Slot slot[1];

  static std::size_t bytes_for(int slots) {
    return sizeof(Layout) + static_cast<std::size_t>(slots - 1) * sizeof(Slot);
  }
};

JobControlBlock JobControlBlock::create(int slots, std::string_view job_id, int world_size) {
  require(slots > 0, "a job control block needs at least one slot");
  JobControlBlock page(SharedMapping::create("job page", Layout::bytes_for(slots)));
  Layout& layout = page.layout();  // All zeros: the initial value of every atomic.
  layout.slots = slots;
  layout.world_size = world_size > 0 ? world_size : slots;
  copy_text(layout.job_id, cut_text(job_id, sizeof layout.job_id - 1));
  layout.oom_kills.begin(oom_kills());
  make_robust(layout.oom_mutex);
  for (int i = 0; i < slots; ++i) make_robust(layout.slot[i].life);
  layout.magic = magic;
  return page;
}

JobControlBlock JobControlBlock::attach(FileDescriptor fd) {
  JobControlBlock page(SharedMapping::attach(std::move(fd)));
  const Layout& layout = page.layout();
  if (page.mapping_.bytes() < sizeof(Layout) || layout.magic != magic ||
      page.mapping_.bytes() < Layout::bytes_for(layout.slots))
    throw Error(Fault::mismatch,
                "the launcher's job control block is of another version of Lockstep");
  return page;
}

JobControlBlock::JobControlBlock(SharedMapping mapping) : mapping_(std::move(mapping)) {}

JobControlBlock::Layout& JobControlBlock::layout() const {
  return *reinterpret_cast<Layout*>(mapping_.data());
}

int JobControlBlock::slots() const { return layout().slots; }

int JobControlBlock::world_size() const { return layout().world_size; }

std::string_view JobControlBlock::job_id() const { return layout().job_id; }

void JobControlBlock::enter(int slot) {
  require(slot >= 0 && slot < slots(), "this job control block has no such slot");
  Slot& mine = layout().slot[slot];
  const int result = take_over(mine);
  if (result != 0)
    throw Error(Fault::misuse, fmt::format("local rank {} of job {} is already taken by process {}",
                                           slot, job_id(), mine.pid.load()));
  mine.is_lost = false;
  mine.pid = ::getpid();
  const auto process = process_stat(mine.pid);
  mine.started = process ? process->started.value_or(0) : 0;
  mine.words.state = (mine.words.state | 3) + 1;
  mine.activity.aborted_at = 0;
  mine.activity.making.state = 0;  // A killed predecessor may have set it.
  mine.steps.reset();
  // A killed predecessor may have left it incomplete. The state grows: no reader mixes two values.
  // Readers load `forgotten` after the state.
  const std::uint32_t even = (mine.broke.state + 1) / 2 * 2;
  mine.broke.forgotten = even;
  mine.broke.state = even;
  mine.phase = Phase::alive;
}

void JobControlBlock::leave(int slot, Phase how) {
  layout().slot[slot].phase = how;
  ::pthread_mutex_unlock(&layout().slot[slot].life);
}

void JobControlBlock::abandon(int slot) const { layout().slot[slot].phase = Phase::abandoned; }

void JobControlBlock::finish(int slot) const { layout().slot[slot].phase = Phase::finished; }

JobControlBlock::Phase JobControlBlock::phase(int slot) const { return layout().slot[slot].phase; }

int JobControlBlock::pid(int slot) const { return layout().slot[slot].pid; }

Activity& JobControlBlock::activity(int slot) const { return layout().slot[slot].activity; }

StepReport& JobControlBlock::step_report(int slot) const { return layout().slot[slot].steps; }

bool JobControlBlock::lost(int slot) const {
  Slot& other = layout().slot[slot];
  if (other.phase == Phase::abandoned) return true;
  if (other.phase != Phase::alive) return false;
  if (other.is_lost) return true;
  const int result = ::pthread_mutex_trylock(&other.life);
  // Remembered: pthread_mutex_trylock() reports an owner's death once. Afterwards, in glibc 2.36, a
  // call that returns ENOTRECOVERABLE keeps the lock, and later ones return EBUSY.
  const bool owner_died = result == EOWNERDEAD || result == ENOTRECOVERABLE;
  // leave() sets the phase before it unlocks. Otherwise, a peer's death in this function would
  // count as that of a rank that has just left.
  const Phase now = other.phase;
  const bool is_lost = owner_died && (now == Phase::alive || now == Phase::abandoned);
  if (is_lost) other.is_lost = true;
  if (result == EOWNERDEAD && !is_lost) ::pthread_mutex_consistent(&other.life);
  if (result == 0 || result == EOWNERDEAD) ::pthread_mutex_unlock(&other.life);
  return is_lost;
}

char JobControlBlock::process_state(int slot) const {
  return process_stat(pid(slot)).value_or(ProcessStat{}).state;
}

void JobControlBlock::announce(int slot, const Announced& announced) const {
  Announcement& mine = layout().slot[slot].announcement;
  Settings settings{.world_size = announced.world_size, .backend = {}};
  copy_text(settings.backend, announced.backend);
  mine.meeting = 0;
  mine.value.store(settings);
  mine.meeting = announced.meeting;
}

std::optional<JobControlBlock::Announced> JobControlBlock::announced(int slot, int meeting) const {
  const Announcement& theirs = layout().slot[slot].announcement;
  if (meeting == 0 || theirs.meeting != meeting) return std::nullopt;
  const Settings settings = theirs.value.load();
  if (theirs.meeting != meeting) return std::nullopt;
  return Announced{meeting, settings.world_size, settings.backend};
}

void JobControlBlock::set_memory_number(int slot, std::uint64_t number) const {
  Slot& mine = layout().slot[slot];
  mine.memory_number = number;
  ++mine.memory_changes;
  futex_wake_all(mine.memory_changes);
}

std::uint64_t JobControlBlock::memory_number(int slot, std::chrono::nanoseconds limit) const {
  const Slot& other = layout().slot[slot];
  const std::uint32_t seen = other.memory_changes;  // First: a later change wakes this thread.
  if (limit.count() > 0 && other.memory_number == 0) futex_wait(other.memory_changes, seen, limit);
  return other.memory_number;
}

void JobControlBlock::expect_preemption(int slot) const {
  layout().slot[slot].expects_preemption = pid(slot);
}

bool JobControlBlock::expects_preemption(int slot) const {
  return pid(slot) != 0 && layout().slot[slot].expects_preemption == pid(slot);
}

void JobControlBlock::agree_on_preemption() const { layout().preemption_agreed = true; }

bool JobControlBlock::preemption_agreed() const { return layout().preemption_agreed; }

void JobControlBlock::tell_to_end(int slot) const { layout().slot[slot].is_told_to_end = true; }

bool JobControlBlock::is_told_to_end(int slot) const {
  return slot >= 0 && slot < slots() && layout().slot[slot].is_told_to_end;
}

void JobControlBlock::await_group(int slot, bool waits) const {
  require(slot >= 0 && slot < slots(), "this job control block has no such slot");
  layout().slot[slot].awaits_group = waits;
  FailureRecord& broke = layout().slot[slot].broke;
  if (!waits) broke.forgotten = broke.state.load();
}

bool JobControlBlock::awaits_group(int slot) const { return layout().slot[slot].awaits_group; }

void JobControlBlock::note_end(int slot, const Failure& end) const {
  record_once(layout().slot[slot].end, end);
}

std::optional<Failure> JobControlBlock::first_end() const {
  std::optional<FailureValue> first;
  for (int slot = 0; slot < slots(); ++slot) {
    const auto one = read(layout().slot[slot].end);
    if (one && (!first || one->reported < first->reported)) first = one;
  }
  return first ? std::optional(failure_in(*first)) : std::nullopt;
}

void JobControlBlock::write_exit_report(int slot, std::string_view text,
                                        std::optional<Fault> fault) const {
  ExitReport& words = layout().slot[slot].words;
  std::uint32_t none = words.state;
  if (none % 4 != 0 || !words.state.compare_exchange_strong(none, none + 1)) return;
  Words value{.fault = number_of(fault), .text = {}};
  copy_text(value.text, cut_text(text, most_words));
  words.value.store(value);
  words.state = none + 2;
}

std::string JobControlBlock::exit_report(int slot) const {
  const auto words = read(layout().slot[slot].words);
  return words ? words->text : "";
}

bool JobControlBlock::follows_abort(int slot) const {
  const Ticks own = activity(slot).aborted_at;  // A later abort may follow from it.
  const Clock::time_point now = Clock::now();
  for (int other = 0; other < slots(); ++other) {
    const Ticks aborted_at = activity(other).aborted_at;
    const bool is_first = aborted_at != 0 && (own == 0 || aborted_at < own);
    if (is_first && now - time_of(aborted_at) < time_for_cause) return true;
  }
  return false;
}

// The kernel counts a kill before it sends the signal.
std::optional<bool> JobControlBlock::oom_killed(int slot, int pid) const {
  Slot& ended = layout().slot[slot];
  const RobustLock lock(layout().oom_mutex);
  if (!lock) return std::nullopt;
  if (pid == 0 || ended.judged_pid != pid) {
    const auto verdict = layout().oom_kills.judge(oom_kills(), Clock::now());
    ended.judged_oom = verdict ? *verdict : -1;
    ended.judged_pid = pid;
  }
  return ended.judged_oom < 0 ? std::nullopt : std::optional(ended.judged_oom == 1);
}

Failure JobControlBlock::examine(int slot) const {
  Failure failure{.rank = slot, .host = host_name(), .pid = pid(slot)};
  note_latest(failure, activity(slot));
  failure.what = exit_report(slot);
  failure.left = phase(slot) == Phase::abandoned;
  if (failure.left) return failure;
  if (const auto status = wait_status_of(failure.pid, layout().slot[slot].started)) {
    if (WIFSIGNALED(*status)) failure.signal = WTERMSIG(*status);
    if (WIFEXITED(*status)) failure.exit_code = WEXITSTATUS(*status);
  }
  if (failure.signal == SIGKILL) failure.oom = oom_killed(slot, failure.pid);
  return failure;
}

void JobControlBlock::note_break(int slot, const Failure& failure) const {
  Slot& mine = layout().slot[slot];
  std::uint32_t state = mine.broke.state;
  if (state % 2 == 1 || !mine.broke.state.compare_exchange_strong(state, state + 1))
    return;  // Another thread of this process is writing.
  FailureValue value = value_of(failure);
  value.resumed = mine.activity.resumed.load(std::memory_order_relaxed);
  mine.broke.value.store(value);
  mine.broke.state = state + 2;
}

std::optional<Failure> JobControlBlock::latest_break(Fault fault) const {
  std::optional<FailureValue> latest;
  for (int slot = 0; slot < slots(); ++slot) {
    const auto one = read(layout().slot[slot].broke);
    if (!one || one->fault != number_of(fault) || one->blamed <= 0) continue;
    if (!latest || one->reported > latest->reported) latest = one;
  }
  return latest ? std::optional(failure_in(*latest)) : std::nullopt;
}

Failure JobControlBlock::cause_of(int slot, const Failure& end) const {
  const Slot& ended = layout().slot[slot];
  const auto value = read(ended.broke);
  const bool crashed = end.signal && end.signal != SIGABRT;
  if (!value || crashed) return end;
  const Failure broke = failure_in(*value);
  const auto words = read(ended.words);
  const bool follows =
      words ? words->fault == number_of(broke.fault.value_or(Fault::peer_lost))
            : ended.activity.resumed.load(std::memory_order_relaxed) == value->resumed;
  return follows ? broke : end;
}

void JobControlBlock::report(const Failure& failure) const {
  record_once(layout().failure, failure);
}

std::optional<Failure> JobControlBlock::failure() const {
  const auto value = read(layout().failure);
  if (!value) return std::nullopt;
  Failure failure = failure_in(*value);
  const int rank = failure.rank;
  const bool is_ours = rank >= 0 && rank < slots() && pid(rank) == failure.pid;
  if (!failure.fault && failure.what.empty() && is_ours) failure.what = exit_report(rank);
  return failure;
}

std::chrono::milliseconds JobControlBlock::since_failure() const {
  const auto value = read(layout().failure);
  if (!value) return {};
  const Clock::time_point then{Clock::duration(value->reported)};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - then);
}

}  // namespace lockstep
