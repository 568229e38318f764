// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/mesh.h"

#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "lockstep/comm/engine/plugin.h"

// Gloo's own, by which it ends all connections when a call has timed out. Declared here because
// packages bring its header without those that it includes.
namespace gloo::transport::tcp {
class Context : public transport::Context {
 public:
  void signalException(const std::string& why);
};
}  // namespace gloo::transport::tcp

namespace lockstep::plugin {
namespace {

constexpr std::size_t max_value_bytes = std::size_t{1} << 20;

// The core's store, as Gloo wants it.
class Addresses final : public gloo::rendezvous::Store {
 public:
  explicit Addresses(const lockstep_engine_store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    lockstep_engine_error error = {};
    if (store_.set(store_.self, key.c_str(), value.data(), value.size(), &error) != 0) {
      throw Failed{static_cast<Fault>(error.fault), error.text};
    }
  }

  std::vector<char> get(const std::string& key) override {
    std::vector<char> value(std::size_t{4} << 10);
    while (true) {
      const std::size_t there = read(key, value);
      const bool is_whole = there <= value.size();
      if (there > max_value_bytes) throw Failed{Fault::corrupt, key + " is too long to be Gloo's"};
      value.resize(there);
      if (is_whole) return value;
    }
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }

  // The core's store has the deadline of create().
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  std::size_t read(const std::string& key, std::vector<char>& value) const {
    std::size_t bytes = 0;
    lockstep_engine_error error = {};
    if (store_.wait(store_.self, key.c_str(), value.data(), value.size(), &bytes, &error) != 0) {
      throw Failed{static_cast<Fault>(error.fault), error.text};
    }
    return bytes;
  }

  const lockstep_engine_store store_;
};

}  // namespace

Mesh::Mesh(const lockstep_engine_config& config)
    : gloo::rendezvous::Context(config.rank, config.size) {
  // A name of a host could stand for several addresses; this is a number, and binds to it alone.
  gloo::transport::tcp::attr where;
  where.hostname = config.address;
  std::shared_ptr<gloo::transport::Device> device;
  loop_ = LoopThread::started_by([&] { device = gloo::transport::tcp::CreateDevice(where); });

  // To connect, Gloo takes five times as long as it was told.
  const std::chrono::milliseconds timeout(config.timeout_ms);
  setTimeout(std::max(timeout / 5, std::chrono::milliseconds(1)));
  Addresses addresses(config.store);
  connectFullMesh(addresses, device);
  const std::chrono::milliseconds call_timeout(config.call_timeout_ms);
  setTimeout(call_timeout);
  transportContext_->setTimeout(call_timeout);
}

void Mesh::give_up(const std::string& why) {
  static_cast<gloo::transport::tcp::Context&>(*transportContext_).signalException(why);
}

}  // namespace lockstep::plugin
