// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/job_store.h"

#include <c10/util/Exception.h>

#include <exception>
#include <future>
#include <memory>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/launcher_notices.h"

namespace lockstep::torch_backend {
namespace {

using Client = c10::intrusive_ptr<c10d::TCPStore>;

std::future<Client> begin_to_connect(const std::string& host,
                                     const c10d::TCPStoreOptions& options) {
  std::promise<Client> promise;
  auto client = promise.get_future();
  start_thread([promise = std::move(promise), host, options]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  return client;
}

}  // namespace

std::pair<Client, std::string> connect_to_store(const std::string& host, std::uint16_t port,
                                                std::size_t world_size, bool use_libuv,
                                                std::chrono::milliseconds attempt,
                                                std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds pause{50};
  const Deadline deadline = in(timeout);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.numWorkers = world_size;
  options.timeout = attempt;
  options.useLibUV = use_libuv;
  auto client = begin_to_connect(host, options);
  while (client.wait_for(pause) == std::future_status::timeout) {
    throw_if_interrupted();
    throw_if_launcher_lost_rank();
    if (Clock::now() >= deadline) return {};
  }
  try {
    return {client.get(), ""};
  } catch (const c10::Error& error) {
    return {nullptr, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace lockstep::torch_backend
