// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/engine_communicator.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/comm/bare_text.h"
#include "lockstep/comm/compose.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/host/block_signals.h"
#include "lockstep/comm/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds slice{20};
constexpr std::chrono::seconds time_to_cancel{10};

lockstep_buffer for_engine(const Buffer& buffer) {
  return {.data = buffer.data,
          .count = buffer.count,
          .dtype = static_cast<std::uint8_t>(buffer.dtype),
          .device = static_cast<std::uint8_t>(buffer.device),
          .device_index = buffer.device_index,
          .stream = buffer.stream};
}

// The store, as a plugin sees it.
struct StoreForEngine {
  Store& store;
  const std::string prefix;
  const Deadline deadline;

  std::string full(const char* key) const { return prefix + key; }

  template <class Act>
  static int guarded(lockstep_engine_error* error, Act act) noexcept {
    try {
      act();
      return 0;
    } catch (const std::exception& thrown) {
      const auto* known = dynamic_cast<const Error*>(&thrown);
      error->fault = static_cast<std::int32_t>(known ? known->fault() : Fault::system);
      const std::string text = known ? bare_text(*known) : thrown.what();
      error->text[text.copy(error->text, sizeof error->text - 1)] = '\0';
      return 1;
    }
  }

  static int set(void* self, const char* key, const void* value, std::size_t bytes,
                 lockstep_engine_error* error) {
    auto& here = *static_cast<StoreForEngine*>(self);
    return guarded(error, [&] {
      here.store.set(here.full(key), {static_cast<const char*>(value), bytes});
    });
  }

  static int wait(void* self, const char* key, void* value, std::size_t capacity,
                  std::size_t* bytes, lockstep_engine_error* error) {
    auto& here = *static_cast<StoreForEngine*>(self);
    return guarded(error, [&] {
      const std::string found = here.store.wait(here.full(key), here.deadline);
      std::memcpy(value, found.data(), std::min(capacity, found.size()));
      *bytes = found.size();
    });
  }
};

}  // namespace

// Shared with its thread, which may never come back from a call.
class EngineCommunicator::Caller {
 public:
  explicit Caller(Options options) : options_(std::move(options)), engine_(*options_.engine->abi) {}

  static void start(const std::shared_ptr<Caller>& self) {
    self->thread_ = start_thread(&Caller::loop, self);
  }

  // Lets the thread do `job` and waits for it. `keep_alive` lives until it has.
  void call(std::function<void()> job, std::shared_ptr<const void> keep_alive, Deadline deadline,
            const Watch& watch, const std::string& what) {
    std::unique_lock lock(mutex_);
    job_ = std::move(job);
    keep_alive_ = std::move(keep_alive);
    error_ = nullptr;
    changed_.notify_all();
    try {
      while (!changed_.wait_for(lock, slice, [&] { return job_ == nullptr; })) {
        lock.unlock();
        watch();
        lock.lock();
        if (job_ != nullptr && Clock::now() >= deadline)
          throw Error(Fault::timeout, fmt::format("{}: {} did not complete it in time", what,
                                                  options_.engine->name));
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      give_up(lock);
      throw;
    }
    if (error_) std::rethrow_exception(error_);
    is_made_ = true;  // The first call makes it.
  }

  void create(Deadline deadline) {
    StoreForEngine store{*options_.store, "engine/" + options_.name + "/", deadline};
    const std::vector<std::int32_t> ranks(options_.world_ranks.begin(), options_.world_ranks.end());
    const lockstep_engine_config config{
        .struct_bytes = sizeof config,
        .rank = options_.rank,
        .size = static_cast<std::int32_t>(ranks.size()),
        .world_ranks = ranks.data(),
        .world_size = options_.world_size,
        .name = options_.name.c_str(),
        .local_rank = options_.local.rank,
        .local_size = options_.local.size,
        .interface_name = options_.interface.name.c_str(),
        .address = options_.interface.address.c_str(),
        .device_index = options_.device_index,
        .timeout_ms = options_.timeout.count(),
        .store = {&store, &StoreForEngine::set, &StoreForEngine::wait},
        .world = options_.world};
    perform("making a communicator",
            [&](lockstep_engine_error* error) { return engine_.create(&config, &made_, error); });
  }

  void run(const Collective& collective) {
    const Signature& signature = collective.signature;
    const auto native = [this](const Collective& one) { run_native(one); };
    if (engine_.supports(static_cast<std::uint8_t>(signature.operation),
                         static_cast<std::uint8_t>(signature.dtype),
                         static_cast<std::uint8_t>(signature.op)) != 0)
      run_native(collective);
    else
      compose(native, collective, options_.rank, size());
  }

  // From the thread of the communicator's owner. What is stuck in a call stays with its thread.
  void end() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    const bool stuck = job_ != nullptr;
    lock.unlock();
    stuck ? thread_.detach() : thread_.join();
  }

  bool can_cancel() const { return engine_.cancel != nullptr; }
  const Options& options() const { return options_; }

 private:
  int size() const { return static_cast<int>(options_.world_ranks.size()); }

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
    if (self->made_ != nullptr) self->engine_.destroy(self->made_);
  }

  // With cancel(), nothing touches the caller's memory any more when this returns.
  void give_up(std::unique_lock<std::mutex>& lock) {
    if (job_ == nullptr || !can_cancel() || !is_made_) return;
    lock.unlock();
    engine_.cancel(made_);
    lock.lock();
    if (!changed_.wait_for(lock, time_to_cancel, [&] { return job_ == nullptr; }))
      log(LogLevel::error,
          fmt::format("{} does not return from a call that was cancelled", options_.engine->name));
  }

  template <class Call>
  void perform(std::string_view what, Call call) {
    lockstep_engine_error error{};
    if (call(&error) == 0) return;
    throw Error(static_cast<Fault>(error.fault),
                fmt::format("{}: {}: {}", options_.engine->name, what, error.text));
  }

  std::vector<std::size_t> counts_of(const Collective& collective) const {
    if (collective.counts.empty())
      return std::vector<std::size_t>(static_cast<std::size_t>(size()), collective.signature.count);
    return {collective.counts.begin(), collective.counts.end()};
  }

  void run_native(const Collective& collective) {
    const Signature& signature = collective.signature;
    const lockstep_buffer input = for_engine(collective.input);
    const lockstep_buffer output = for_engine(collective.output);
    const auto op = static_cast<std::uint8_t>(signature.op);
    void* const self = made_;
    perform(name(signature.operation), [&](lockstep_engine_error* error) {
      switch (signature.operation) {
        case Operation::all_reduce:
          return engine_.all_reduce(self, &output, op, error);
        case Operation::broadcast:
          return engine_.broadcast(self, &output, signature.root, error);
        case Operation::reduce:
          return engine_.reduce(self, &output, signature.root, op, error);
        case Operation::all_gather:
          return engine_.all_gather(self, &input, &output, counts_of(collective).data(), error);
        case Operation::reduce_scatter:
          return engine_.reduce_scatter(self, &input, &output, counts_of(collective).data(), op,
                                        error);
        case Operation::all_to_all:
          return all_to_all(collective, input, output, error);
        default:
          throw Error(Fault::bug, describe(signature) + " is nothing that an engine does");
      }
    });
  }

  int all_to_all(const Collective& collective, const lockstep_buffer& input,
                 const lockstep_buffer& output, lockstep_engine_error* error) {
    const auto n = static_cast<std::size_t>(size());
    const auto me = static_cast<std::size_t>(options_.rank);
    std::vector<std::size_t> send(n, collective.signature.count);
    std::vector<std::size_t> receive = send;
    if (!collective.counts.empty())
      for (std::size_t peer = 0; peer < n; ++peer) {
        send[peer] = collective.counts[me * n + peer];
        receive[peer] = collective.counts[peer * n + me];
      }
    return engine_.all_to_all(made_, &input, &output, send.data(), receive.data(), error);
  }

  const Options options_;
  const lockstep_engine& engine_;
  void* made_ = nullptr;  // The communicator: of the thread, once it is made.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // Null when there is none, or it is done.
  std::shared_ptr<const void> keep_alive_;
  std::exception_ptr error_;
  bool is_made_ = false;
  bool ending_ = false;
  std::thread thread_;
};

EngineCommunicator::EngineCommunicator(Options options, const Watch& watch)
    : caller_(std::make_shared<Caller>(std::move(options))) {
  Caller::start(caller_);
  const Deadline deadline = in(caller_->options().timeout);
  try {
    caller_->call([caller = caller_.get(), deadline] { caller->create(deadline); }, nullptr,
                  deadline, watch, "making communicator " + caller_->options().name);
  } catch (...) {
    caller_->end();
    throw;
  }
}

EngineCommunicator::~EngineCommunicator() { caller_->end(); }

int EngineCommunicator::rank() const { return caller_->options().rank; }

bool EngineCommunicator::can_cancel() const { return caller_->can_cancel(); }

void EngineCommunicator::run(const Collective& collective, std::shared_ptr<const void> keep_alive,
                             Deadline deadline, const Watch& watch) {
  // By value: the caller may be gone before a call that cannot be cancelled returns.
  std::vector<std::size_t> counts(collective.counts.begin(), collective.counts.end());
  caller_->call(
      [caller = caller_.get(), owned = collective, counts = std::move(counts)]() mutable {
        owned.counts = counts;
        caller->run(owned);
      },
      std::move(keep_alive), deadline, watch, describe(collective.signature));
}

}  // namespace lockstep
