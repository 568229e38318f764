// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/mesh.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {
namespace {

constexpr std::size_t most_name_bytes = 16;  // For a thread's name, including its final zero.

bool set_policy(pid_t thread, int policy) {
  const sched_param parameters = {};
  return ::sched_setscheduler(thread, policy, &parameters) == 0;
}

// Gives a new thread a name and a policy to inherit: Gloo does not report which thread it starts.
class Inherited {
 public:
  explicit Inherited(const std::string& name) {
    ::pthread_getname_np(::pthread_self(), name_.data(), name_.size());
    ::pthread_setname_np(::pthread_self(), name.c_str());
    is_batch_ =
        ::sched_getscheduler(this_thread) == SCHED_OTHER && set_policy(this_thread, SCHED_BATCH);
  }
  ~Inherited() {
    if (is_batch_) set_policy(this_thread, SCHED_OTHER);
    ::pthread_setname_np(::pthread_self(), name_.data());
  }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;

  bool is_batch() const { return is_batch_; }

 private:
  static constexpr pid_t this_thread = 0;

  std::array<char, most_name_bytes> name_{};
  bool is_batch_ = false;
};

pid_t thread_of_name(const std::string& name) {
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::string found;
    std::getline(std::ifstream(task->path() / "comm"), found);
    if (found == name) return std::stoi(task->path().filename());
  }
  return 0;
}

// The core's store, for Gloo.
class Addresses final : public gloo::rendezvous::Store {
 public:
  explicit Addresses(const lockstep_engine_store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    store_.set(key, value);
  }
  std::vector<char> get(const std::string& key) override {
    return store_.wait<std::vector<char>>(key);
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  // The core's store has the deadline of create().
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  const plugin::Store store_;
};

}  // namespace

LoopThread LoopThread::started_by(const std::function<void()>& start) {
  static std::atomic<unsigned> number = 0;
  const std::string name = "gloo " + std::to_string(number++);
  bool is_batch = false;
  {
    const Inherited inherited(name);
    is_batch = inherited.is_batch();
    start();
  }
  LoopThread thread;
  if (is_batch) thread.id_ = thread_of_name(name);
  return thread;
}

LoopThread::Preempting::Preempting(const LoopThread& thread) : id_(thread.id_) {
  if (id_ != 0) set_policy(id_, SCHED_OTHER);
}

LoopThread::Preempting::~Preempting() {
  if (id_ != 0) set_policy(id_, SCHED_BATCH);
}

}  // namespace lockstep::comm::engines

// Gloo's class to end all connections after a timeout. Declared here because packages ship its
// header without those that it includes.
namespace gloo::transport::tcp {
class Context : public transport::Context {
 public:
  void signalException(const std::string& why);
};
}  // namespace gloo::transport::tcp

namespace lockstep::comm::engines {

Mesh::Mesh(const lockstep_engine_config& config)
    : gloo::rendezvous::Context(config.rank, config.size) {
  // A host's name could mean several addresses.
  gloo::transport::tcp::attr where;
  where.hostname = config.address;
  std::shared_ptr<gloo::transport::Device> device;
  loop_ = LoopThread::started_by([&] { device = gloo::transport::tcp::CreateDevice(where); });

  // Gloo takes five times the given timeout to connect.
  const std::chrono::milliseconds timeout(config.timeout_ms);
  setTimeout(std::max(timeout / 5, std::chrono::milliseconds(1)));
  Addresses addresses(config.store);
  connectFullMesh(addresses, device);
  const std::chrono::milliseconds call_timeout(config.call_timeout_ms);
  setTimeout(call_timeout);
  transportContext_->setTimeout(call_timeout);
}

class Mesh::Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(Mesh& mesh, std::unique_ptr<gloo::transport::UnboundBuffer> made)
      : UnboundBuffer(made->ptr, made->size), mesh_(mesh), made_(std::move(made)) {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.buffers_.insert(this);
    if (mesh_.is_aborted_) abort();
  }
  ~Buffer() override {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.buffers_.erase(this);
  }

  void abort() {
    made_->abortWaitRecv();
    made_->abortWaitSend();
  }

  // Throws, because Gloo's collectives ignore the result of a wait.
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return made_->waitRecv(rank, timeout) || throw_aborted();
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return made_->waitSend(rank, timeout) || throw_aborted();
  }
  void abortWaitRecv() override { made_->abortWaitRecv(); }
  void abortWaitSend() override { made_->abortWaitSend(); }
  void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    made_->send(peer, slot, offset, bytes);
  }
  void recv(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    made_->recv(peer, slot, offset, bytes);
  }
  void recv(std::vector<int> peers, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    made_->recv(std::move(peers), slot, offset, bytes);
  }

 private:
  [[noreturn]] static bool throw_aborted() {
    throw gloo::IoException("the connections of this communicator were ended");
  }

  Mesh& mesh_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> made_;
};

std::unique_ptr<gloo::transport::UnboundBuffer> Mesh::buffer(void* data, std::size_t bytes) {
  return std::make_unique<Buffer>(*this, createUnboundBuffer(data, bytes));
}

void Mesh::abort(const std::string& why) {
  static_cast<gloo::transport::tcp::Context&>(*transportContext_).signalException(why);
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (Buffer* buffer : buffers_) buffer->abort();
}

}  // namespace lockstep::comm::engines
