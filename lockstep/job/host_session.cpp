// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/random_number.h"
#include "lockstep/base/text.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {
namespace {

constexpr int heartbeat_ms = 100;

constexpr std::chrono::milliseconds time_for_exit_report{50};

FileDescriptor call_rank_zero(const HostMeeting& meeting, Deadline deadline,
                              const std::function<void()>& meanwhile) {
  while (true) {
    if (FileDescriptor socket = connect_to_fd_broker(meeting.identity)) return socket;
    meanwhile();
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout,
                  fmt::format("rank 0 of job '{}' did not appear on this host", meeting.job_id));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Equal keys mean the same failure. Mismatching calls have the same number.
std::string key_of(const Failure& failure) {
  if (!failure.fault)
    return fmt::format("{} {}{}", failure.rank, failure.pid, failure.left ? " left" : "");
  const auto number = failure.call.find('#');
  return fmt::format("{} {}", name(*failure.fault),
                     number == failure.call.npos ? failure.call : failure.call.substr(number));
}

std::string memory_of(std::uint64_t number) { return fmt::format("memory {:016x}", number); }

std::atomic<bool> keeps{false};
std::atomic<bool> signalled{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // For signal handlers.

void keep(int) { signalled.store(true); }

// A heartbeat later than a busy host explains means that the process was stopped.
class StepReporter {
 public:
  explicit StepReporter(StepReport& page) : page_(page) {}

  void beat(Clock::time_point now) {
    constexpr std::chrono::milliseconds late{500};
    const auto gap = now - std::exchange(last_beat_, now);
    if (gap > late) stood_still_ += gap - std::chrono::milliseconds(heartbeat_ms);
    if (now < next_report_) return;
    page_.recent.show(recent_.since_then(StepClock::of_process().times()));
    report();
    next_report_ = in(RecentTimes::interval);  // Does not catch up after a stop.
  }

  void report() {
    const StepTimes whole = StepClock::of_process().since_first_step();
    if (whole.total().count() == 0) stood_still_ = {};
    page_.whole.show(whole);
    page_.stood_still = std::chrono::nanoseconds(stood_still_).count();
  }

 private:
  StepReport& page_;
  RecentTimes recent_;
  Clock::time_point last_beat_ = Clock::now();
  Deadline next_report_ = last_beat_;
  Clock::duration stood_still_{0};
};

}  // namespace

LivenessThread::LivenessThread(JobControlBlock& page, int slot, std::vector<FdBroker*> brokers,
                               std::function<void()> look)
    : page_(page),
      slot_(slot),
      brokers_(std::move(brokers)),
      look_(std::move(look)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw_errno("making an eventfd");
  std::promise<void> entered;
  std::future<void> outcome = entered.get_future();
  thread_ = start_thread(&LivenessThread::live, this, std::move(entered));
  try {
    outcome.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

LivenessThread::~LivenessThread() {
  // Fails only with another writer. join() would then hang.
  if (::eventfd_write(stop_.get(), 1) != 0) thread_.detach();
  if (thread_.joinable()) thread_.join();
}

void LivenessThread::live(std::promise<void> entered) {
  try {
    page_.enter(slot_);
  } catch (...) {
    entered.set_exception(std::current_exception());
    return;
  }
  entered.set_value();
  std::vector<pollfd> entries;
  StepReporter reporter(page_.step_report(slot_));
  while (true) {
    page_.activity(slot_).heartbeat.fetch_add(1, std::memory_order_relaxed);
    reporter.beat(Clock::now());
    if (how_ == JobControlBlock::Phase::abandoned) look_();
    entries.assign(1, {stop_.get(), POLLIN, 0});
    watch_fd_brokers(entries);
    if (::poll(entries.data(), entries.size(), heartbeat_ms) <= 0) continue;
    if (entries.front().revents != 0) break;
    for (FdBroker* const board : brokers_) board->serve(entries);
  }
  reporter.beat(Clock::now());
  reporter.report();
  serve_what_is_left(entries);
  page_.leave(slot_, how_);
}

void LivenessThread::watch_fd_brokers(std::vector<pollfd>& entries) const {
  for (const FdBroker* const board : brokers_) board->watch(entries);
}

void LivenessThread::serve_what_is_left(std::vector<pollfd>& entries) {
  for (int turn = 0; turn < 100; ++turn) {
    entries.clear();
    watch_fd_brokers(entries);
    if (::poll(entries.data(), entries.size(), 0) <= 0) return;
    for (FdBroker* const board : brokers_) board->serve(entries);
  }
}

HostMeeting HostMeeting::through_agent(const LaunchEnvironment& who) {
  return {.rank = who.rank, .size = who.world_size, .job_id = who.job_id, .agent_fd = who.agent_fd};
}

// Only the ranks of one start of a job have this identity. The number of ranks is absent so that a
// mismatch is reported; secrets are fingerprints, because core dumps contain the identity.
HostMeeting HostMeeting::on_socket(const LaunchEnvironment& who, std::string_view name,
                                   std::string_view secret) {
  std::string identity =
      fmt::format("{} {} attempt={}", secret.empty() ? who.job_id : fingerprint(Secret(secret)),
                  name, who.attempt);
  if (secret.empty() && secret_of_environment())
    identity += fmt::format(" token={}", fingerprint(*secret_of_environment()));
  require(identity.size() < sizeof Packet::text, [&] {
    return fmt::format(
        "the job's name is too long: with it, the identity by which its ranks find each other "
        "takes {} bytes; {} is most",
        identity.size(), sizeof Packet::text - 1);
  });
  return {.rank = who.rank,
          .size = who.world_size,
          .job_id = who.job_id,
          .identity = std::move(identity),
          .opens = who.rank == 0,
          .is_alone = who.world_size == 1};
}

HostSession::HostSession(const HostMeeting& meeting, Deadline deadline,
                         const std::function<void()>& meanwhile)
    : rank_(meeting.rank),
      meeting_(meeting.announced.meeting),
      has_agent_(meeting.agent_fd.has_value()) {
  if (meeting.opens && !meeting.agent_fd) {
    open_fd_broker(meeting);
  } else {
    HostLink link(meeting.agent_fd ? duplicate_agent_fd(*meeting.agent_fd)
                                   : call_rank_zero(meeting, deadline, meanwhile));
    page_ = std::make_shared<JobControlBlock>(
        JobControlBlock::attach(link.obtain(job_control_block_key, deadline)));
  }
  const bool compares = meeting_ > 0 && rank_ < size();  // All ranks will compare and report it.
  if (size() != meeting.size && !compares)
    throw Error(Fault::mismatch,
                fmt::format("rank {} expects {} ranks, {} expects {} (WORLD_SIZE)", rank_,
                            meeting.size, has_agent_ ? "the launcher" : "rank 0", size()));
  std::vector<FdBroker*> boards;
  if (broker_) boards.push_back(broker_.get());
  // New for each session: a fork()ed child of the slot's earlier process may still hold its socket.
  const std::uint64_t number = random_number();
  if (size() > 1) {
    own_memory_ = std::make_shared<FdBroker>(page_->descriptor());
    own_memory_->listen(listen_on_abstract_socket(memory_of(number)), memory_of(number));
    boards.push_back(own_memory_.get());
  }
  liveness_ =
      std::make_unique<LivenessThread>(*page_, rank_, std::move(boards), [this] { look(); });
  // After entering the slot, which another job's process with this name cannot do.
  page_->set_memory_number(rank_, number);
  if (compares) page_->announce(rank_, meeting.announced);
}

HostSession::~HostSession() {
  liveness_.reset();
  if (speaker_.joinable()) speaker_.join();
}

void HostSession::open_fd_broker(const HostMeeting& meeting) {
  page_ = std::make_shared<JobControlBlock>(JobControlBlock::create(meeting.size, meeting.job_id));
  broker_ = std::make_unique<FdBroker>(page_->descriptor());
  if (meeting.is_alone) return;
  broker_->listen(listen_on_abstract_socket(meeting.identity), meeting.identity);
}

void HostSession::offer(std::string_view key, int fd) const {
  if (!own_memory_) return;
  own_memory_->publish(key, duplicate(fd));
}

void HostSession::refuse(std::string_view key, std::string_view reason) const {
  if (own_memory_) own_memory_->publish_refusal(key, reason);
}

void HostSession::withdraw(std::string_view key) const noexcept {
  if (own_memory_) own_memory_->withdraw(key);
}

std::shared_ptr<const void> HostSession::hand_out(std::string key, int fd) const {
  if (!own_memory_) return nullptr;
  offer(key, fd);
  const auto end = [board = std::weak_ptr(own_memory_), pid = this_process(),
                    key = std::move(key)](const void*) {
    // In a child, a thread that does not exist may still hold the lock.
    const auto strong = pid == this_process() ? board.lock() : nullptr;
    if (strong) strong->withdraw(key);
  };
  return {own_memory_.get(), end};
}

FileDescriptor HostSession::fetch(int slot, std::string_view key, Deadline deadline,
                                  const std::function<void()>& check) const {
  constexpr std::chrono::milliseconds longest_wait{20};
  const auto identity = [&] {
    const std::uint64_t number = page_->memory_number(slot, longest_wait);
    return number == 0 ? std::string() : memory_of(number);
  };
  return lockstep::fetch(identity, key, deadline, check);
}

void HostSession::deliver(int slot, std::string_view key, int fd) const {
  const std::uint64_t number = page_->memory_number(slot);
  if (number == 0) return;
  lockstep::deliver(memory_of(number), key, fd, [&] {
    return page_->phase(slot) == JobControlBlock::Phase::alive && !page_->lost(slot);
  });
}

FileDescriptor HostSession::take(std::string_view key) const {
  return own_memory_ ? own_memory_->take(key) : FileDescriptor();
}

void HostSession::drop(std::string_view key) const noexcept {
  if (own_memory_) own_memory_->drop(key);
}

void HostSession::finish() {
  liveness_->leave_as(JobControlBlock::Phase::finished);
  page_->set_memory_number(rank_, 0);
  if (own_memory_) own_memory_->close();
}

void HostSession::leave() {
  finish();
  page_->finish(rank_);
}

void HostSession::throw_if_peer_lost(std::string_view context) const {
  const auto failure = find_failure();
  if (!failure) return;
  // The agent does not report this: the awaited rank has exited in order.
  if (!page_->failure()) page_->note_break(rank_, *failure);
  log_once(*failure);
  throw Error(context, *failure);
}

// The job's first failure, perhaps detected here. While a slot is vacant, all ranks wait for its
// process, which may have exited in order.
std::optional<Failure> HostSession::find_failure() const {
  if (auto failure = page_->failure()) return failure;
  auto end = page_->first_end();
  const bool is_ours = end && end->rank >= 0 && end->rank < size();
  if (is_ours && page_->phase(end->rank) == JobControlBlock::Phase::vacant) return end;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || !page_->lost(peer) || page_->follows_abort(peer)) continue;
    const Failure seen = page_->cause_of(peer, examine(peer));
    page_->report(seen);
    return recorded_failure().value_or(seen);
  }
  return std::nullopt;
}

void HostSession::look() noexcept {
  if (page_->phase(rank_) != JobControlBlock::Phase::alive || is_speaking_) return;
  try {
    const auto failure = find_failure();
    const bool is_new = failure && (failure->rank != rank_ || failure->fault);
    if (!is_new || is_logged(*failure)) return;
    if (speaker_.joinable()) speaker_.join();
    is_speaking_ = true;
    speaker_ = start_thread([this, failure = *failure] {
      log_once(failure);
      is_speaking_ = false;
    });
  } catch (...) {  // No memory or thread: the next wait reports it.
    is_speaking_ = false;
  }
}

bool HostSession::is_logged(const Failure& failure) const {
  const std::lock_guard lock(logged_mutex_);
  return logged_.contains(key_of(failure));
}

// Omits ranks ended at the agent's request: this one may be next.
void HostSession::log_once(const Failure& failure) const {
  {
    const std::lock_guard lock(logged_mutex_);
    if (!logged_.insert(key_of(failure)).second) return;
  }
  if (!failure.fault && page_->is_told_to_end(failure.rank)) return;
  const auto after = failure.fault ? std::chrono::milliseconds(0) : page_->since_failure();
  // The Errors of all ranks, or the agent, report the failure to people.
  log(LogLevel::info, failure_record(page_->job_id(), failure, after));
}

void HostSession::note_break(Failure failure) {
  if (failure.fault && failure.detected_by != rank_) {
    auto known = page_->latest_break(*failure.fault);
    if (!known) known = page_->failure();  // A rank of another host left because of it.
    if (known && known->fault == failure.fault) failure = *std::move(known);
  }
  page_->note_break(rank_, failure);
  log_once(failure);
}

// Waits for more. A rank that lost its group by an exception writes its exit report
// during stack unwinding. If a parent, such as a shell, has reaped the rank, only the agent has its
// exit status.
Failure HostSession::examine(int peer) const {
  const Deadline deadline = in(time_for_exit_report);
  Failure seen = page_->examine(peer);
  const auto is_unexplained = [&] { return !seen.signal && !seen.exit_code && seen.what.empty(); };
  while (is_unexplained() && !page_->failure() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = page_->examine(peer);
  }
  seen.detected_by = rank_;
  return seen;
}

// Another rank may be recording this failure; the record stays incomplete if that rank was
// killed.
std::optional<Failure> HostSession::recorded_failure() const {
  const Deadline deadline = in(std::chrono::milliseconds(100));
  while (!page_->failure() && Clock::now() < deadline) std::this_thread::yield();
  return page_->failure();
}

void keep_preemption_signals() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (keeps) return;
  struct sigaction action {};
  action.sa_handler = keep;
  action.sa_flags = SA_RESTART;
  ::sigfillset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1})
    if (::sigaction(signal, &action, nullptr) != 0) throw_errno("installing a signal handler");
  keeps = true;
}

bool keeps_preemption_signals() { return keeps; }

bool preemption_signalled() { return signalled; }

}  // namespace lockstep
