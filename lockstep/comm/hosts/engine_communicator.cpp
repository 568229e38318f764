// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/engine_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/thread.h"
#include "lockstep/comm/reduce/compose.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t most_named = 8;  // Ranks in a message.
constexpr std::chrono::milliseconds await_slice{20};
constexpr std::chrono::seconds time_to_cancel{3};
constexpr std::chrono::seconds time_to_end{10};
constexpr std::chrono::milliseconds time_to_end_alone{300};

// For LOCKSTEP_ENGINE_SWAPS. On a fast link, a swap of 64 KB took 0.6 times as long as Gloo's ring.
// On 1 Gbit/s, 8 MB took 1.08 times as long.
constexpr std::size_t most_swapped_bytes = std::size_t{256} << 10;

// A thread that stays in an engine uses libraries and memory that process exit would destroy. So
// exit handlers registered before this are not called.
void leave_without_destructors() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::on_exit(
        [](int code, void*) {
          std::fflush(nullptr);
          ::_exit(code);
        },
        nullptr);
  });
}

constexpr std::align_val_t alignment{64};

bool lies_in(const Buffer& buffer, const std::byte* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  return std::greater_equal<>()(begin, data) &&
         std::less_equal<>()(begin + buffer.bytes(), data + bytes);
}

// Not zeroed: every use writes it before reading.
std::shared_ptr<std::byte[]> make_scratch(std::size_t bytes) {
  return {static_cast<std::byte*>(::operator new(bytes, alignment)),
          [](std::byte* data) { ::operator delete(data, alignment); }};
}

}  // namespace

// Shared with its thread, which may never return from a call.
class EngineCommunicator::Caller {
 public:
  explicit Caller(CommunicatorOptions options) : options_(std::move(options)) {}

  static void start(const std::shared_ptr<Caller>& self) {
    self->thread_ = start_thread(&Caller::loop, self);
  }

  // `keep_alive` lives until the job is done.
  void start(std::function<void()> job, std::shared_ptr<const void> keep_alive, std::string what) {
    const std::lock_guard lock(mutex_);
    check(job_ == nullptr, "an engine's call was started before the last one ended");
    job_ = std::move(job);
    keep_alive_ = std::move(keep_alive);
    what_ = std::move(what);
    error_ = nullptr;
    changed_.notify_all();
  }

  void wait(Deadline deadline, const Watch& watch) {
    std::unique_lock lock(mutex_);
    try {
      while (!changed_.wait_for(lock, await_slice, [&] { return job_ == nullptr; })) {
        lock.unlock();
        watch();
        lock.lock();
        if (job_ != nullptr && Clock::now() >= deadline)
          throw Error(Fault::timeout, fmt::format("{}: {} did not complete it in time, with {}",
                                                  what_, options_.engine->name, others()));
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      abort(lock);
      throw;
    }
    is_alone_ = error_ != nullptr;
    if (error_) std::rethrow_exception(error_);
    is_made_ = true;  // The first call makes it.
  }

  void abort() {
    std::unique_lock lock(mutex_);
    if (job_ != nullptr) abort(lock);
  }

  void create() { made_ = make_communicator(options_); }

  void run(const Collective& collective) {
    const Signature& signature = collective.signature;
    const bool is_supported = made_->supports(signature.operation, signature.dtype, signature.op);
    if (is_supported && !swaps(collective))
      made_->run(collective);
    else
      compose([this](const Collective& one) { made_->run(one); }, collective, options_.rank,
              size());
  }

  // A stuck call keeps its thread, and so does an end that waits for peers, as in oneCCL.
  void end() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    const std::chrono::milliseconds patience = is_alone_ ? time_to_end_alone : time_to_end;
    const bool ends =
        job_ == nullptr && changed_.wait_for(lock, patience, [&] { return has_ended_; });
    lock.unlock();
    if (ends) return thread_.join();
    leave_without_destructors();
    thread_.detach();
  }

  void expect_no_peers() {
    const std::lock_guard lock(mutex_);
    is_alone_ = true;
  }

  bool can_cancel() const {
    const lockstep_engine& abi = *options_.engine->abi;
    return abi.cancel != nullptr && (abi.flags & LOCKSTEP_ENGINE_MAY_STAY) == 0;
  }
  const CommunicatorOptions& options() const { return options_; }

 private:
  int size() const { return static_cast<int>(options_.world_ranks.size()); }

  // Names a few: all ranks have started the call, and the failed one is unknown.
  std::string others() const {
    std::vector<int> named = options_.world_ranks;
    named.erase(named.begin() + options_.rank);
    const std::size_t others = named.size();
    named.resize(std::min(others, most_named));
    std::string text = fmt::format("{} {}", others == 1 ? "rank" : "ranks", fmt::join(named, ", "));
    if (named.size() < others) text += fmt::format(" and {} more", others - named.size());
    return text + " of the job";
  }

  bool swaps(const Collective& collective) const {
    return size() == 2 && collective.signature.operation == Operation::all_reduce &&
           collective.output.device == DeviceKind::cpu &&
           collective.output.bytes() <= most_swapped_bytes &&
           (options_.engine->abi->flags & LOCKSTEP_ENGINE_SWAPS) != 0;
  }

  static void loop(const std::shared_ptr<Caller>& self) {
    std::unique_lock lock(self->mutex_);
    while (true) {
      self->changed_.wait(lock, [&] { return self->ending_ || self->job_; });
      if (!self->job_) break;
      lock.unlock();
      std::exception_ptr error;
      try {
        self->job_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      self->error_ = error;
      self->job_ = nullptr;
      self->keep_alive_ = nullptr;
      self->changed_.notify_all();
    }
    lock.unlock();
    self->made_.reset();
    lock.lock();
    self->has_ended_ = true;
    self->changed_.notify_all();
  }

  void abort(std::unique_lock<std::mutex>& lock) {
    is_alone_ = true;
    if (job_ == nullptr || options_.engine->abi->cancel == nullptr || !is_made_) return;
    lock.unlock();
    made_->cancel();
    lock.lock();
    if (!can_cancel()) return;
    if (!changed_.wait_for(lock, time_to_cancel, [&] { return job_ == nullptr; }))
      log(LogLevel::warning,
          fmt::format("{} does not return from a cancelled call: its thread is left behind",
                      options_.engine->name));
  }

  const CommunicatorOptions options_;
  // Owned by the thread; cancel() may use it after is_made_.
  std::unique_ptr<PluginCommunicator> made_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;
  std::shared_ptr<const void> keep_alive_;
  std::string what_;
  std::exception_ptr error_;
  bool is_made_ = false;
  bool is_alone_ = false;  // Peers may be lost.
  bool ending_ = false;
  bool has_ended_ = false;
  Thread thread_;
};

EngineCommunicator::EngineCommunicator(CommunicatorOptions options, const Watch& watch)
    : caller_(std::make_shared<Caller>(std::move(options))) {
  Caller::start(caller_);
  const Deadline deadline = in(caller_->options().timeout);
  try {
    caller_->start(
        [caller = caller_.get()] { caller->create(); }, nullptr,
        fmt::format("making communicator {} by {} {}", caller_->options().name,
                    caller_->options().interface.name, caller_->options().interface.address));
    caller_->wait(deadline, watch);
  } catch (...) {
    caller_->end();
    throw;
  }
}

EngineCommunicator::~EngineCommunicator() { caller_->end(); }

int EngineCommunicator::rank() const { return caller_->options().rank; }

void EngineCommunicator::expect_no_peers() { caller_->expect_no_peers(); }

bool EngineCommunicator::can_cancel() const { return caller_->can_cancel(); }

void EngineCommunicator::start(const Collective& collective,
                               std::shared_ptr<const void> keep_alive) {
  // A copy: the caller may end before a call that cannot be cancelled.
  std::vector<std::size_t> counts(collective.counts.begin(), collective.counts.end());
  caller_->start(
      [caller = caller_.get(), owned = collective, counts = std::move(counts)]() mutable {
        owned.counts = counts;
        caller->run(owned);
      },
      std::move(keep_alive), describe(collective.signature));
}

void EngineCommunicator::wait(Deadline deadline, const Watch& watch) {
  caller_->wait(deadline, watch);
}

void EngineCommunicator::abort() noexcept { caller_->abort(); }

RegisteredMemory KeptMemory::add(RegisteredMemory memory) {
  std::erase_if(known_, [](const Known& known) { return known.memory.expired(); });
  const auto shared = std::make_shared<RegisteredMemory>(std::move(memory));
  known_.push_back({shared, static_cast<const std::byte*>(shared->data()), shared->bytes()});
  return {shared, shared->data(), shared->bytes()};
}

Buffer KeptMemory::scratch(std::size_t which, const Buffer& shape) {
  if (scratch_.size() <= which) scratch_.resize(which + 1);
  Scratch& scratch = scratch_[which];
  if (scratch.bytes < shape.bytes()) {
    scratch = {};  // Frees the old memory first.
    scratch = {make_scratch(shape.bytes()), shape.bytes()};
  }
  Buffer buffer = shape;
  buffer.data = scratch.data.get();
  return buffer;
}

std::shared_ptr<const void> KeptMemory::owner_of(const Buffer& buffer) const {
  if (buffer.bytes() == 0) return nullptr;
  for (const Scratch& scratch : scratch_)
    if (scratch.data && lies_in(buffer, scratch.data.get(), scratch.bytes)) return scratch.data;
  for (const Known& known : known_)
    if (lies_in(buffer, known.data, known.bytes))
      if (auto memory = known.memory.lock()) return memory;
  return nullptr;
}

}  // namespace lockstep::comm
