// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/host/job_page.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "lockstep/comm/host/fixed_text.h"
#include "lockstep/comm/host/host_name.h"
#include "lockstep/comm/host/oom_kills.h"
#include "lockstep/comm/time.h"

namespace lockstep {
namespace {

constexpr std::uint64_t magic = 0x5041474553504b35;  // Changes with the layout.

constexpr std::size_t most_words = 1024;  // Bytes.

// What a process says before it ends.
struct LastWords {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 complete.
  char text[most_words + 1];
};

// The value of a Failure in memory that several processes share.
struct FailureRecord {
  enum class Cause : std::int32_t { unknown, exit_code, signal, left };

  std::atomic<std::uint32_t> state;  // 0 empty, 1 being written, 2 complete.
  std::int32_t rank;
  std::int32_t pid;
  Cause cause;
  std::int32_t value;
  std::int32_t oom;  // -1 unknown, 0 no, 1 yes.
  std::int32_t detected_by;
  std::uint64_t sequence;
  Clock::rep reported;  // When, by the steady clock, which is the same for all processes of a host.
  char host[64];
  char operation[32];
  char group[sizeof(GroupName) + 1];
  char what[most_words + 1];
};

struct Slot {
  alignas(64) pthread_mutex_t life;
  std::atomic<JobPage::Phase> phase;
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> started;  // When that process did: with its pid, which process it is.
  std::atomic<std::int32_t> expects_preemption;  // The pid that does; a successor must ask anew.
  alignas(64) Activity activity;
  alignas(64) LastWords words;
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

// Field `number`, counted from 1, of a process's stat file; proc(5) names them.
std::optional<std::string> stat_text(int pid, int number) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto end_of_name = text.rfind(')');  // The second field, which may hold anything.
  if (end_of_name == text.npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= number; ++i)
    if (!(fields >> field)) return std::nullopt;
  return field;
}

std::optional<std::int64_t> stat_field(int pid, int number) {
  const auto text = stat_text(pid, number);
  return text ? std::optional(std::stoll(*text)) : std::nullopt;
}

// The wait status of a process that has begun to end, from the last field of its stat file:
// there long before waitpid() would return. Empty when it has been reaped already.
std::optional<int> wait_status_of(int pid, std::int64_t started) {
  const auto status = stat_field(pid, 52);
  // The number may be another process's by now, or in another PID namespace.
  if (!status || stat_field(pid, 22) != started) return std::nullopt;
  return static_cast<int>(*status);
}

// The beginning of `text`, which does not end within a character of UTF-8.
std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace

struct JobPage::Layout {
  std::uint64_t magic;
  std::int32_t slots;
  std::int64_t oom_kills;  // Before the job began; -1 when unknown.
  char job_id[128];
  std::atomic<bool> preemption_agreed;
  alignas(64) FailureRecord failure;
  alignas(64) Slot slot[1];  // One for each rank of the host.

  static std::size_t bytes_for(int slots) {
    return sizeof(Layout) + static_cast<std::size_t>(slots - 1) * sizeof(Slot);
  }
};

JobPage JobPage::create(int slots, std::string_view job_id) {
  require(slots > 0, "a job page needs at least one slot");
  JobPage page(SharedMapping::create("job page", Layout::bytes_for(slots)));
  Layout& layout = page.layout();  // All zeros, which is how every atomic in it starts.
  layout.slots = slots;
  copy_text(layout.job_id, job_id);
  layout.oom_kills = oom_kills().value_or(-1);
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

std::string_view JobPage::job_id() const { return layout().job_id; }

void JobPage::enter(int slot) {
  require(slot >= 0 && slot < slots(), "this job page has no such slot");
  Slot& mine = layout().slot[slot];
  int result = ::pthread_mutex_trylock(&mine.life);
  // A peer that asks lost() just after leave() holds the mutex for a moment.
  for (int i = 0; i < 1000 && result == EBUSY && mine.phase != Phase::alive; ++i) {
    ::sched_yield();
    result = ::pthread_mutex_trylock(&mine.life);
  }
  if (result != 0)
    throw Error(Fault::misuse, fmt::format("local rank {} of job {} is already taken by process {}",
                                           slot, job_id(), mine.pid.load()));
  mine.pid = ::getpid();
  mine.started = stat_field(mine.pid, 22).value_or(0);
  mine.words.state = 0;
  mine.phase = Phase::alive;
}

void JobPage::leave(int slot, Phase how) {
  layout().slot[slot].phase = how;
  ::pthread_mutex_unlock(&layout().slot[slot].life);
}

void JobPage::abandon(int slot) const { layout().slot[slot].phase = Phase::abandoned; }

JobPage::Phase JobPage::phase(int slot) const { return layout().slot[slot].phase; }

int JobPage::pid(int slot) const { return layout().slot[slot].pid; }

Activity& JobPage::activity(int slot) const { return layout().slot[slot].activity; }

bool JobPage::lost(int slot) const {
  Slot& other = layout().slot[slot];
  if (other.phase == Phase::abandoned) return true;
  if (other.phase != Phase::alive) return false;
  const int result = ::pthread_mutex_trylock(&other.life);
  // Unlocking without making it consistent marks the mutex as lost for everybody, for good.
  if (result == 0 || result == EOWNERDEAD) ::pthread_mutex_unlock(&other.life);
  return result == EOWNERDEAD || result == ENOTRECOVERABLE;
}

char JobPage::process_state(int slot) const { return stat_text(pid(slot), 3).value_or("?")[0]; }

void JobPage::expect_preemption(int slot) const {
  layout().slot[slot].expects_preemption = pid(slot);
}

bool JobPage::expects_preemption(int slot) const {
  return pid(slot) != 0 && layout().slot[slot].expects_preemption == pid(slot);
}

void JobPage::agree_on_preemption() const { layout().preemption_agreed = true; }

bool JobPage::preemption_agreed() const { return layout().preemption_agreed; }

void JobPage::say_last_words(int slot, std::string_view text) const {
  LastWords& words = layout().slot[slot].words;
  std::uint32_t none = 0;
  if (!words.state.compare_exchange_strong(none, 1)) return;
  copy_text(words.text, cut(text, most_words));
  words.state = 2;
}

std::string JobPage::last_words(int slot) const {
  const LastWords& words = layout().slot[slot].words;
  return words.state == 2 ? words.text : "";
}

// The kernel counts a kill before it sends the signal.
std::optional<bool> JobPage::oom_killed() const {
  const auto now = oom_kills();
  if (layout().oom_kills < 0 || !now) return std::nullopt;
  return static_cast<std::int64_t>(*now) > layout().oom_kills;
}

Failure JobPage::examine(int slot) const {
  const Activity& last = activity(slot);
  Failure failure{.rank = slot, .host = host_name(), .pid = pid(slot)};
  failure.sequence = last.sequence();
  if (failure.sequence > 0) {
    failure.operation = name(last.operation());
    failure.group = group_of(last);
  }
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

void JobPage::report(const Failure& failure) const {
  using Cause = FailureRecord::Cause;
  FailureRecord& record = layout().failure;
  std::uint32_t empty = 0;
  if (!record.state.compare_exchange_strong(empty, 1)) return;
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
  record.reported = Clock::now().time_since_epoch().count();
  copy_text(record.host, failure.host);
  copy_text(record.operation, failure.operation);
  copy_text(record.group, failure.group);
  copy_text(record.what, failure.what);
  record.state = 2;
}

std::optional<Failure> JobPage::failure() const {
  using Cause = FailureRecord::Cause;
  const FailureRecord& record = layout().failure;
  if (record.state != 2) return std::nullopt;
  Failure failure{.rank = record.rank, .host = record.host, .pid = record.pid};
  if (record.cause == Cause::signal) failure.signal = record.value;
  if (record.cause == Cause::exit_code) failure.exit_code = record.value;
  if (record.oom >= 0) failure.oom = record.oom == 1;
  failure.left = record.cause == Cause::left;
  failure.operation = record.operation;
  failure.sequence = record.sequence;
  failure.group = record.group;
  failure.detected_by = record.detected_by;
  failure.what = record.what;
  const bool is_ours = record.rank >= 0 && record.rank < slots() && pid(record.rank) == record.pid;
  if (failure.what.empty() && is_ours) failure.what = last_words(record.rank);
  return failure;
}

std::chrono::milliseconds JobPage::since_failure() const {
  const FailureRecord& record = layout().failure;
  if (record.state != 2) return {};
  const Clock::time_point then{Clock::duration(record.reported)};
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - then);
}

}  // namespace lockstep
