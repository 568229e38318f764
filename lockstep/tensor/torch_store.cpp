// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/torch_store.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/store/foreign_store.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds longest_pause{50};

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Translates c10d's exceptions. A network error becomes `broken`.
template <class Body>
auto translated(std::string_view what, Body body, Fault broken = Fault::peer_lost) {
  const auto text = [&](const std::exception& error) {
    const std::string_view all = error.what();
    return std::string(what) + ": " + std::string(all.substr(0, all.find('\n')));
  };
  try {
    return body();
  } catch (const c10::DistStoreError& error) {
    throw Error(Fault::timeout, text(error));
  } catch (const c10::DistError& error) {
    throw Error(broken, text(error));
  }
}

class TorchStore final : public Store {
 private:
  template <class Body>
  auto reached(std::string_view what, Body body) {
    try {
      return translated(what, body);
    } catch (const Error& error) {
      if (error.fault() == Fault::peer_lost) lost_();
      throw;
    }
  }

 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> look,
             std::function<void()> lost)
      : store_(std::move(store)), look_(std::move(look)), lost_(std::move(lost)) {}

  void set(std::string_view key, std::string_view value) override {
    require_limits(key, value);
    reached("set", [&] { store_->set(std::string(key), bytes_of(value)); });
  }

  std::optional<std::string> find(std::string_view key) override {
    require_limits(key, {});
    look_();
    return reached("find", [&]() -> std::optional<std::string> {
      if (!store_->check({std::string(key)})) return std::nullopt;
      return text_of(store_->get(std::string(key)));
    });
  }

  std::string wait(std::string_view key, Deadline deadline) override {
    require_limits(key, {});
    // c10d's wait would block every other call.
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, longest_pause)) {
      if (auto value = find(key)) return *std::move(value);
      const auto now = Clock::now();
      if (now >= deadline)
        throw Error(Fault::timeout, "wait: nobody has set '" + std::string(key) + "'");
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    require_limits(key, {});
    return reached("add", [&] { return store_->add(std::string(key), amount); });
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    require_limits(key, desired);
    return reached("compare_set", [&] {
      return text_of(store_->compareSet(std::string(key), bytes_of(expected), bytes_of(desired)));
    });
  }

  bool erase(std::string_view key) override {
    require_limits(key, {});
    return reached("erase", [&] { return store_->deleteKey(std::string(key)); });
  }

 private:
  static void require_limits(std::string_view key, std::string_view value) {
    require(key.size() <= max_key_bytes, "a store's key may be 4 KiB long at most");
    require(value.size() <= max_value_bytes, "a store's value may be 16 MiB long at most");
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::function<void()> look_;
  const std::function<void()> lost_;
};

bool torchrun_listens() {
  const char* text = read_variable("TORCHELASTIC_USE_AGENT_STORE");
  return text != nullptr && std::string_view(text) == "True";
}

std::string required_variable(const char* name) {
  const char* text = read_variable(name);
  require(text != nullptr, [&] {
    return std::string("connect_torch_store: ") + name +
           " is not set: MASTER_ADDR and MASTER_PORT must name PyTorch's store";
  });
  return text;
}

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, int port, bool listens,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = listens;
  options.waitWorkers = false;
  options.timeout = timeout;
  return translated(
      "connecting to PyTorch's store at " + host + ":" + std::to_string(port),
      [&] { return c10::make_intrusive<c10d::TCPStore>(host, options); }, Fault::timeout);
}

std::shared_ptr<Store> connect_to_torchrun(const ForeignStoreAddress& address, Deadline deadline) {
  // c10d adds the timeout to the current time, which must not overflow, and may wait twice that
  // long.
  constexpr std::chrono::milliseconds most = std::chrono::hours(24 * 365);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  auto store = tcp_store(address.host, address.port, false,
                         std::clamp(left / 2, std::chrono::milliseconds(1), most));
  store->setTimeout(default_timeout);  // The deadline is for the connection only.
  return adapt(c10::make_intrusive<c10d::PrefixStore>(address.prefix, std::move(store)));
}

// At library load: init_process_group() does not depend on PyTorch.
[[maybe_unused]] const bool is_registered = [] {
  register_foreign_store(connect_to_torchrun);
  return true;
}();

}  // namespace

std::shared_ptr<Store> adapt(c10::intrusive_ptr<c10d::Store> store, std::function<void()> look,
                             std::function<void()> lost) {
  require(store.defined(), "adapt: the store is null");
  return std::make_shared<TorchStore>(std::move(store), std::move(look), std::move(lost));
}

std::shared_ptr<Store> connect_torch_store() {
  const std::string host = required_variable("MASTER_ADDR");
  const std::string port = required_variable("MASTER_PORT");
  const int number = std::atoi(port.c_str());
  require(number > 0 && number <= std::numeric_limits<std::uint16_t>::max(),
          [&] { return "connect_torch_store: MASTER_PORT='" + port + "' is not a port"; });
  const bool listens = read_environment().rank == 0 && !torchrun_listens();
  return adapt(tcp_store(host, number, listens, default_timeout));
}

}  // namespace lockstep
