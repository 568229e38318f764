// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/job_page.h"

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

namespace lockstep {
namespace {

constexpr std::uint64_t magic = 0x5041474553504c37;  // Changes with what ranks share.

constexpr std::size_t most_words = 1024;  // Bytes.

// A process's own report of its end.
struct LastWords {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 complete.
  std::int32_t fault;                // -1 when it is not an Error of this library.
  char text[most_words + 1];
};

// A Failure in memory that processes share.
struct FailureRecord {
  static constexpr std::int32_t no_peer = -2;

  enum class Cause : std::int32_t { unknown, exit_code, signal, left };

  // 0: empty. Odd: being written. Even: complete, with another number for each value.
  std::atomic<std::uint32_t> state;
  std::int32_t rank;
  std::int32_t pid;
  Cause cause;
  std::int32_t value;
  std::int32_t oom;  // -1 unknown, 0 no, 1 yes.
  std::int32_t detected_by;
  std::uint64_t sequence;
  std::int32_t peer;    // `no_peer` for none.
  Clock::rep reported;  // Time of the steady clock, which all processes of a host share.
  std::int32_t fault;   // -1 for none.
  std::int32_t blamed;  // Number of `ranks` in use.
  std::int32_t ranks[most_blamed];
  char call[256];
  char host[64];
  char operation[32];
  char group[sizeof(GroupName) + 1];
  char what[most_words + 1];
};

// A JobPage::Told. `meeting` is written last and marks it complete.
struct Announcement {
  std::atomic<std::int32_t> meeting;
  std::int32_t world_size;
  char backend[48];
};

struct Slot {
  alignas(64) pthread_mutex_t life;
  std::atomic<JobPage::Phase> phase;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> started;  // Start time of the process; with the pid, it identifies the
                                      // process.
  std::atomic<std::int32_t> expects_preemption;  // Pid of the process that expects it; a successor
                                                 // must ask anew.
  std::atomic<std::uint64_t> memory_number;      // JobPage::memory_number().
  std::atomic<std::uint32_t> memory_changes;     // Number of its changes, for futex_wait().
  // The next three are of the process that the agent has started in this place, whichever process
  // enters the slot: enter() leaves them as they are.
  std::atomic<bool> is_told_to_end;
  std::atomic<bool> awaits_group;
  FailureRecord end;  // JobPage::note_end().
  alignas(64) Activity activity;
  alignas(64) StepReport steps;
  alignas(64) LastWords words;
  Announcement announcement;
  FailureRecord broke;                   // Break of its group by living ranks.
  std::atomic<std::uint32_t> forgotten;  // Breaks up to this state of the record.
  std::uint64_t resumed_before;          // Activity::resumed at the break.
};

void make_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = ::pthread_mutex_init(&mutex, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (result != 0) throw_errno("making a robust mutex", result);
}

// Returns the wait status of a process that has begun to end, long before waitpid() would return.
// Empty when it has been reaped.
std::optional<int> wait_status_of(int pid, std::int64_t started) {
  const auto process = process_stat(pid);
  // The pid may belong to another process now, or be from another PID namespace.
  if (!process || process->started != started) return std::nullopt;
  return process->wait_status;
}

std::int32_t number_of(const std::optional<Fault>& fault) {
  return fault ? static_cast<std::int32_t>(*fault) : -1;
}

// Writes all members except `state`.
void write(FailureRecord& record, const Failure& failure) {
  using Cause = FailureRecord::Cause;
  record.rank = failure.rank;
  record.pid = failure.pid;
  record.cause = failure.signal      ? Cause::signal
                 : failure.exit_code ? Cause::exit_code
                 : failure.left      ? Cause::left
                                     : Cause::unknown;
  record.value = failure.signal.value_or(failure.exit_code.value_or(0));
  record.oom = failure.oom ? *failure.oom : -1;
  record.detected_by = failure.detected_by;
  record.sequence = failure.sequence;
  record.peer = failure.peer.value_or(FailureRecord::no_peer);
  record.reported = Clock::now().time_since_epoch().count();
  record.fault = number_of(failure.fault);
  const std::size_t blamed = std::min(failure.ranks.size(), most_blamed);
  std::copy_n(failure.ranks.begin(), blamed, record.ranks);
  record.blamed = static_cast<std::int32_t>(blamed);
  copy_text(record.call, failure.call);
  copy_text(record.host, failure.host);
  copy_text(record.operation, failure.operation);
  copy_text(record.group, failure.group);
  copy_text(record.what, cut_text(failure.what, most_words));
}

// A concurrent write may mix two values. Each text always ends within its array.
Failure value_of(const FailureRecord& record) {
  using Cause = FailureRecord::Cause;
  Failure failure{.rank = record.rank, .host = record.host, .pid = record.pid};
  if (record.cause == Cause::signal) failure.signal = record.value;
  if (record.cause == Cause::exit_code) failure.exit_code = record.value;
  if (record.oom >= 0) failure.oom = record.oom == 1;
  failure.left = record.cause == Cause::left;
  failure.operation = record.operation;
  failure.sequence = record.sequence;
  if (record.peer != FailureRecord::no_peer) failure.peer = record.peer;
  failure.group = record.group;
  failure.detected_by = record.detected_by;
  failure.what = record.what;
  if (record.fault >= 0) failure.fault = static_cast<Fault>(record.fault);
  const auto blamed = std::clamp<std::int32_t>(record.blamed, 0, most_blamed);
  failure.ranks.assign(record.ranks, record.ranks + blamed);
  failure.call = record.call;
  return failure;
}

bool is_complete(std::uint32_t state) { return state != 0 && state % 2 == 0; }

// Adding 0 orders the reads of the value before that of the state, as a load would not.
std::optional<Failure> read(FailureRecord& record) {
  while (true) {
    const std::uint32_t before = record.state;
    if (!is_complete(before)) return std::nullopt;
    Failure failure = value_of(record);
    if (record.state.fetch_add(0) == before) return failure;
  }
}

// Empty if the process has made or joined another group since.
std::optional<Failure> read_break(Slot& slot) {
  return slot.broke.state > slot.forgotten ? read(slot.broke) : std::nullopt;
}

// Async-signal-safe.
void record_once(FailureRecord& record, const Failure& failure) {
  std::uint32_t empty = 0;
  if (!record.state.compare_exchange_strong(empty, 1)) return;
  write(record, failure);
  record.state = 2;
}

}  // namespace

struct JobPage::Layout {
  std::uint64_t magic;
  std::int32_t slots;
  std::int32_t world_size;
  std::int64_t oom_kills;  // Count before the job began; -1 when unknown.
  char job_id[384];        // Room for all variables of torchrun, with the longest name of a host.
  std::atomic<bool> preemption_agreed;
  alignas(64) FailureRecord failure;
  alignas(64) Slot slot[1];  // One for each rank of the host.

  static std::size_t bytes_for(int slots) {
    return sizeof(Layout) + static_cast<std::size_t>(slots - 1) * sizeof(Slot);
  }
};

JobPage JobPage::create(int slots, std::string_view job_id, int world_size) {
  require(slots > 0, "a job page needs at least one slot");
  JobPage page(SharedMapping::create("job page", Layout::bytes_for(slots)));
  Layout& layout = page.layout();  // All zeros: the initial value of every atomic in it.
  layout.slots = slots;
  layout.world_size = world_size > 0 ? world_size : slots;
  copy_text(layout.job_id, cut_text(job_id, sizeof layout.job_id - 1));
  const auto kills = oom_kills();
  layout.oom_kills = kills ? static_cast<std::int64_t>(*kills) : -1;
  for (int i = 0; i < slots; ++i) make_robust(layout.slot[i].life);
  layout.magic = magic;
  return page;
}

JobPage JobPage::attach(FileDescriptor fd) {
  JobPage page(SharedMapping::attach(std::move(fd)));
  const Layout& layout = page.layout();
  if (page.mapping_.bytes() < sizeof(Layout) || layout.magic != magic ||
      page.mapping_.bytes() < Layout::bytes_for(layout.slots))
    throw Error(Fault::mismatch, "the launcher's job page is of another version of Lockstep");
  return page;
}

JobPage::JobPage(SharedMapping mapping) : mapping_(std::move(mapping)) {}

JobPage::Layout& JobPage::layout() const { return *reinterpret_cast<Layout*>(mapping_.data()); }

int JobPage::slots() const { return layout().slots; }

int JobPage::world_size() const { return layout().world_size; }

std::string_view JobPage::job_id() const { return layout().job_id; }

void JobPage::enter(int slot) {
  require(slot >= 0 && slot < slots(), "this job page has no such slot");
  Slot& mine = layout().slot[slot];
  int result = ::pthread_mutex_trylock(&mine.life);
  // A peer that calls lost() just after leave() holds the mutex for a moment.
  for (int i = 0; i < 1000 && result == EBUSY && mine.phase != Phase::alive; ++i) {
    ::sched_yield();
    result = ::pthread_mutex_trylock(&mine.life);
  }
  if (result != 0)
    throw Error(Fault::misuse, fmt::format("local rank {} of job {} is already taken by process {}",
                                           slot, job_id(), mine.pid.load()));
  mine.pid = ::getpid();
  const auto process = process_stat(mine.pid);
  mine.started = process ? process->started.value_or(0) : 0;
  mine.words.state = 0;
  mine.activity.gave_up = 0;
  mine.activity.making.state = 0;  // A killed predecessor may have been in it.
  mine.steps.reset();
  mine.forgotten = 0;
  mine.broke.state = 0;  // A killed predecessor may have left it half written.
  mine.phase = Phase::alive;
}

void JobPage::leave(int slot, Phase how) {
  layout().slot[slot].phase = how;
  ::pthread_mutex_unlock(&layout().slot[slot].life);
}

void JobPage::abandon(int slot) const { layout().slot[slot].phase = Phase::abandoned; }

void JobPage::finish(int slot) const { layout().slot[slot].phase = Phase::finished; }

JobPage::Phase JobPage::phase(int slot) const { return layout().slot[slot].phase; }

int JobPage::pid(int slot) const { return layout().slot[slot].pid; }

Activity& JobPage::activity(int slot) const { return layout().slot[slot].activity; }

StepReport& JobPage::step_report(int slot) const { return layout().slot[slot].steps; }

bool JobPage::lost(int slot) const {
  Slot& other = layout().slot[slot];
  if (other.phase == Phase::abandoned) return true;
  if (other.phase != Phase::alive) return false;
  const int result = ::pthread_mutex_trylock(&other.life);
  // Unlocking without making it consistent marks the mutex as lost for everybody, permanently.
  if (result == 0 || result == EOWNERDEAD) ::pthread_mutex_unlock(&other.life);
  return result == EOWNERDEAD || result == ENOTRECOVERABLE;
}

char JobPage::process_state(int slot) const {
  return process_stat(pid(slot)).value_or(ProcessStat{}).state;
}

void JobPage::announce(int slot, const Told& told) const {
  Announcement& mine = layout().slot[slot].announcement;
  mine.meeting = 0;
  mine.world_size = told.world_size;
  copy_text(mine.backend, told.backend);
  mine.meeting = told.meeting;
}

std::optional<JobPage::Told> JobPage::told(int slot, int meeting) const {
  Announcement& theirs = layout().slot[slot].announcement;
  if (meeting == 0 || theirs.meeting != meeting) return std::nullopt;
  Told told{meeting, theirs.world_size, theirs.backend};
  if (theirs.meeting.fetch_add(0) != meeting) return std::nullopt;  // Overwritten meanwhile.
  return told;
}

void JobPage::set_memory_number(int slot, std::uint64_t number) const {
  Slot& mine = layout().slot[slot];
  mine.memory_number = number;
  ++mine.memory_changes;
  futex_wake_all(mine.memory_changes);
}

std::uint64_t JobPage::memory_number(int slot, std::chrono::nanoseconds limit) const {
  const Slot& other = layout().slot[slot];
  const std::uint32_t seen = other.memory_changes;  // Read first: a later change wakes this thread.
  if (limit.count() > 0 && other.memory_number == 0) futex_wait(other.memory_changes, seen, limit);
  return other.memory_number;
}

void JobPage::expect_preemption(int slot) const {
  layout().slot[slot].expects_preemption = pid(slot);
}

bool JobPage::expects_preemption(int slot) const {
  return pid(slot) != 0 && layout().slot[slot].expects_preemption == pid(slot);
}

void JobPage::agree_on_preemption() const { layout().preemption_agreed = true; }

bool JobPage::preemption_agreed() const { return layout().preemption_agreed; }

void JobPage::tell_to_end(int slot) const { layout().slot[slot].is_told_to_end = true; }

bool JobPage::is_told_to_end(int slot) const {
  return slot >= 0 && slot < slots() && layout().slot[slot].is_told_to_end;
}

void JobPage::await_group(int slot, bool waits) const {
  require(slot >= 0 && slot < slots(), "this job page has no such slot");
  layout().slot[slot].awaits_group = waits;
  if (!waits) layout().slot[slot].forgotten = layout().slot[slot].broke.state.load();
}

bool JobPage::awaits_group(int slot) const { return layout().slot[slot].awaits_group; }

void JobPage::note_end(int slot, const Failure& end) const {
  record_once(layout().slot[slot].end, end);
}

std::optional<Failure> JobPage::first_end() const {
  std::optional<Failure> first;
  Clock::rep when = 0;
  for (int slot = 0; slot < slots(); ++slot) {
    FailureRecord& record = layout().slot[slot].end;
    auto one = read(record);
    if (!one || (first && record.reported >= when)) continue;
    first = std::move(one);
    when = record.reported;
  }
  return first;
}

void JobPage::say_last_words(int slot, std::string_view text, std::optional<Fault> fault) const {
  LastWords& words = layout().slot[slot].words;
  std::uint32_t none = 0;
  if (!words.state.compare_exchange_strong(none, 1)) return;
  copy_text(words.text, cut_text(text, most_words));
  words.fault = number_of(fault);
  words.state = 2;
}

std::string JobPage::last_words(int slot) const {
  const LastWords& words = layout().slot[slot].words;
  return words.state == 2 ? words.text : "";
}

bool JobPage::follows_abort(int slot) const {
  const Ticks own = activity(slot).gave_up;  // A later one may pass on the reason of the first.
  const Clock::time_point now = Clock::now();
  for (int other = 0; other < slots(); ++other) {
    const Ticks gave_up = activity(other).gave_up;
    const bool is_first = gave_up != 0 && (own == 0 || gave_up < own);
    if (is_first && now - time_of(gave_up) < time_for_cause) return true;
  }
  return false;
}

// The kernel counts a kill before it sends the signal.
std::optional<bool> JobPage::oom_killed() const {
  const auto now = oom_kills();
  if (layout().oom_kills < 0 || !now) return std::nullopt;
  return static_cast<std::int64_t>(*now) > layout().oom_kills;
}

Failure JobPage::examine(int slot) const {
  Failure failure{.rank = slot, .host = host_name(), .pid = pid(slot)};
  note_latest(failure, activity(slot));
  failure.what = last_words(slot);
  failure.left = phase(slot) == Phase::abandoned;
  if (failure.left) return failure;
  if (const auto status = wait_status_of(failure.pid, layout().slot[slot].started)) {
    if (WIFSIGNALED(*status)) failure.signal = WTERMSIG(*status);
    if (WIFEXITED(*status)) failure.exit_code = WEXITSTATUS(*status);
  }
  if (failure.signal == SIGKILL) failure.oom = oom_killed();
  return failure;
}

void JobPage::note_break(int slot, const Failure& failure) const {
  Slot& mine = layout().slot[slot];
  std::uint32_t state = mine.broke.state;
  if (state % 2 == 1 || !mine.broke.state.compare_exchange_strong(state, state + 1))
    return;  // Another thread of this process is writing.
  write(mine.broke, failure);
  mine.resumed_before = mine.activity.resumed.load(std::memory_order_relaxed);
  mine.broke.state = state + 2;
}

std::optional<Failure> JobPage::latest_break(Fault fault) const {
  std::optional<Failure> latest;
  Clock::rep when = 0;
  for (int slot = 0; slot < slots(); ++slot) {
    FailureRecord& record = layout().slot[slot].broke;
    const Clock::rep reported = record.reported;
    auto one = read_break(layout().slot[slot]);
    if (!one || one->fault != fault || one->ranks.empty() || (latest && reported <= when)) continue;
    latest = std::move(one);
    when = reported;
  }
  return latest;
}

Failure JobPage::cause_of(int slot, const Failure& end) const {
  Slot& ended = layout().slot[slot];
  const auto broke = read_break(ended);
  const bool crashed = end.signal && end.signal != SIGABRT;
  if (!broke || crashed) return end;
  const Fault fault = broke->fault.value_or(Fault::peer_lost);
  const bool has_spoken = ended.words.state == 2;
  const bool follows =
      has_spoken ? ended.words.fault == number_of(fault)
                 : ended.activity.resumed.load(std::memory_order_relaxed) == ended.resumed_before;
  return follows ? *broke : end;
}

void JobPage::report(const Failure& failure) const { record_once(layout().failure, failure); }

std::optional<Failure> JobPage::failure() const {
  auto failure = read(layout().failure);
  if (!failure || failure->fault) return failure;
  const int rank = failure->rank;
  const bool is_ours = rank >= 0 && rank < slots() && pid(rank) == failure->pid;
  if (failure->what.empty() && is_ours) failure->what = last_words(rank);
  return failure;
}

std::chrono::milliseconds JobPage::since_failure() const {
  const FailureRecord& record = layout().failure;
  if (!is_complete(record.state)) return {};
  const Clock::time_point then{Clock::duration(record.reported)};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - then);
}

}  // namespace lockstep
