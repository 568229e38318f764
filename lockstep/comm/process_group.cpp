// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/process_group.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/host/host_session.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/progress_thread.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {
namespace {

std::uint64_t hash_of(std::string_view tag) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a.
  for (const char c : tag) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return tag.empty() ? 0 : hash;
}

void require_valid(const Buffer& buffer, std::string_view what) {
  require(buffer.data != nullptr || buffer.count == 0,
          fmt::format("{}: {} elements at a null pointer", what, buffer.count));
  if (buffer.device != DeviceKind::cpu)
    throw Error(Fault::unsupported, fmt::format("{}: this group moves CPU memory only", what));
}

Signature signature_of(Operation operation, const Buffer& buffer) {
  return {.count = buffer.count, .operation = operation, .dtype = buffer.dtype};
}

}  // namespace

// What all copies of a handle share: the order of calls, their numbers, and whether the group can
// still be used.
class ProcessGroup::State {
 public:
  State(std::shared_ptr<HostSession> session, std::string group, std::chrono::milliseconds timeout)
      : rank(session->rank()),
        size(session->size()),
        name(std::move(group)),
        timeout_(timeout),
        session_(std::move(session)),
        backend_(std::make_unique<ShmBackend>(session_, name, in(timeout))) {}

  ~State() {
    if (backend_) backend_->cancel();  // Or an operation under way would go on to its deadline.
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Runs `operation` of the backend on this thread, after all that came before.
  template <class F>
  auto run(Signature signature, const CallOptions& options, F operation) {
    const std::lock_guard lock(order_);
    require_possible(signature);
    progress_.wait_until_idle();
    return execute(tagged(signature, options), deadline_of(options), operation);
  }

  // The same on the progress thread, which is joined before anything else of this goes.
  template <class F>
  Work submit(Signature signature, const CallOptions& options, F operation) {
    const std::lock_guard lock(order_);
    require_possible(signature);
    return progress_.submit(
        [this, signature = tagged(signature, options), deadline = deadline_of(options), operation,
         kept = options.keep_alive] { execute(signature, deadline, operation); });
  }

  void leave() {
    const std::lock_guard lock(order_);
    progress_.wait_until_idle();
    destroyed_ = true;
    session_->finish();
    backend_.reset();
    session_.reset();
  }

  const int rank;
  const int size;
  const std::string name;

 private:
  static Signature tagged(Signature signature, const CallOptions& options) {
    signature.tag = hash_of(options.tag);
    return signature;
  }

  Deadline deadline_of(const CallOptions& options) const {
    return in(options.timeout.value_or(timeout_));
  }

  void require_usable() const { require(!destroyed_, fmt::format("group {} was destroyed", name)); }

  // What is refused here is not numbered, and breaks nothing.
  void require_possible(const Signature& signature) const {
    require_usable();
    if (signature.operation == Operation::all_reduce &&
        !backend_->reduces(signature.dtype, signature.op))
      throw Error(Fault::unsupported,
                  fmt::format("all_reduce: backend {} has no {} of {}", backend_->name(),
                              lockstep::name(signature.op), lockstep::name(signature.dtype)));
  }

  template <class F>
  auto execute(const Signature& signature, Deadline deadline, F& operation) {
    require_usable();
    if (broken_) std::rethrow_exception(broken_);
    const Call call{signature, ++sequence_, deadline};
    session_->activity().operation.store(signature.operation, std::memory_order_relaxed);
    session_->activity().sequence.store(call.sequence, std::memory_order_relaxed);
    try {
      return operation(*backend_, call);
    } catch (...) {
      broken_ = std::current_exception();
      throw;
    }
  }

  const std::chrono::milliseconds timeout_;
  std::mutex order_;
  std::atomic<bool> destroyed_{false};
  std::uint64_t sequence_ = 0;
  std::exception_ptr broken_;  // The first Error, thrown again by every later call.
  std::shared_ptr<HostSession> session_;
  std::unique_ptr<Backend> backend_;
  ProgressThread progress_;  // Last, so that it ends before what its operations use.
};

ProcessGroup::ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size; }
int ProcessGroup::local_rank() const { return state_->rank; }
int ProcessGroup::local_size() const { return state_->size; }
const std::string& ProcessGroup::name() const { return state_->name; }

namespace {

auto all_reduce_of(Buffer data) {
  return [data](Backend& backend, const Call& call) { backend.all_reduce(data, call); };
}

auto broadcast_of(Buffer data) {
  return [data](Backend& backend, const Call& call) { backend.broadcast(data, call); };
}

auto all_gather_of(Buffer input, Buffer output) {
  return [=](Backend& backend, const Call& call) { backend.all_gather(input, output, call); };
}

auto barrier_of() {
  return [](Backend& backend, const Call& call) { backend.barrier(call); };
}

Signature all_reduce_signature(const Buffer& data, ReduceOp op) {
  require_valid(data, "all_reduce");
  Signature signature = signature_of(Operation::all_reduce, data);
  signature.op = op;
  return signature;
}

Signature broadcast_signature(const Buffer& data, int root, int size) {
  require_valid(data, "broadcast");
  require(root >= 0 && root < size,
          fmt::format("broadcast: there is no rank {} in a group of {}", root, size));
  Signature signature = signature_of(Operation::broadcast, data);
  signature.root = root;
  return signature;
}

Signature all_gather_signature(const Buffer& input, const Buffer& output, int size) {
  require_valid(input, "all_gather");
  require_valid(output, "all_gather");
  require(input.dtype == output.dtype, "all_gather: input and output are of different types");
  require(output.count == input.count * static_cast<std::size_t>(size),
          fmt::format("all_gather: {} ranks' {} elements do not make the output's {}", size,
                      input.count, output.count));
  return signature_of(Operation::all_gather, input);
}

}  // namespace

void ProcessGroup::all_reduce(const Buffer& data, ReduceOp op, const CallOptions& options) const {
  state_->run(all_reduce_signature(data, op), options, all_reduce_of(data));
}

Work ProcessGroup::all_reduce_async(const Buffer& data, ReduceOp op,
                                    const CallOptions& options) const {
  return state_->submit(all_reduce_signature(data, op), options, all_reduce_of(data));
}

void ProcessGroup::broadcast(const Buffer& data, int root, const CallOptions& options) const {
  state_->run(broadcast_signature(data, root, size()), options, broadcast_of(data));
}

Work ProcessGroup::broadcast_async(const Buffer& data, int root, const CallOptions& options) const {
  return state_->submit(broadcast_signature(data, root, size()), options, broadcast_of(data));
}

void ProcessGroup::all_gather(const Buffer& input, const Buffer& output,
                              const CallOptions& options) const {
  state_->run(all_gather_signature(input, output, size()), options, all_gather_of(input, output));
}

Work ProcessGroup::all_gather_async(const Buffer& input, const Buffer& output,
                                    const CallOptions& options) const {
  return state_->submit(all_gather_signature(input, output, size()), options,
                        all_gather_of(input, output));
}

void ProcessGroup::barrier(const CallOptions& options) const {
  state_->run({.operation = Operation::barrier}, options, barrier_of());
}

Work ProcessGroup::barrier_async(const CallOptions& options) const {
  return state_->submit({.operation = Operation::barrier}, options, barrier_of());
}

RegisteredMemory ProcessGroup::allocate(std::size_t bytes, const CallOptions& options) const {
  require(bytes <= std::numeric_limits<std::size_t>::max() / 2 / static_cast<std::size_t>(size()),
          fmt::format("allocate: {} bytes for each of {} ranks", bytes, size()));
  const Signature signature{.count = bytes, .operation = Operation::allocate};
  return state_->run(signature, options,
                     [](Backend& backend, const Call& call) { return backend.allocate(call); });
}

namespace {

void require_one_host(const LaunchEnvironment& who) {
  if (who.local_world_size != who.world_size)
    throw Error(Fault::unsupported,
                fmt::format("{} of {} ranks run on this host; ranks on several hosts are not "
                            "supported yet",
                            who.local_world_size, who.world_size));
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<HostSession> current;
  static int groups_made = 0;

  const LaunchEnvironment who = options.environment ? *options.environment : read_environment();
  require_one_host(who);
  const std::lock_guard lock(mutex);
  require(current.expired(), "init_process_group: this process is in a group already");
  const std::string name = ++groups_made == 1 ? "world" : fmt::format("world.{}", groups_made);
  auto session = std::make_shared<HostSession>(who, name, in(options.timeout));
  current = session;
  auto state = std::make_shared<ProcessGroup::State>(std::move(session), name, options.timeout);
  log(LogLevel::info, fmt::format("rank {} of {} joined group {}, started by {}, backend shm",
                                  who.rank, who.world_size, name, who.launcher));
  return ProcessGroup(std::move(state));
}

void destroy_process_group(ProcessGroup& group) {
  group.barrier();
  group.state_->leave();
}

}  // namespace lockstep
