// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/make_communicator.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// The store in the plugin's form.
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

// Clocks cannot add milliseconds::max() to a time.
std::int64_t bounded(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365)).count();
}

}  // namespace

std::unique_ptr<PluginCommunicator> make_communicator(const CommunicatorOptions& options) {
  StoreForEngine store{*options.store, options.keys + options.name + "/", in(options.timeout)};
  const std::vector<std::int32_t> ranks(options.world_ranks.begin(), options.world_ranks.end());
  const lockstep_engine_config config{
      .struct_bytes = sizeof config,
      .rank = options.rank,
      .size = static_cast<std::int32_t>(ranks.size()),
      .world_ranks = ranks.data(),
      .world_size = options.world_size,
      .name = options.name.c_str(),
      .local_rank = options.local.rank,
      .local_size = options.local.size,
      .interface_name = options.interface.name.c_str(),
      .address = options.interface.address.c_str(),
      .device_index = options.device_index,
      .timeout_ms = bounded(options.timeout),
      .call_timeout_ms = bounded(options.call_timeout),
      .store = {&store, &StoreForEngine::set, &StoreForEngine::wait},
      .world = options.world};
  return std::make_unique<PluginCommunicator>(*options.engine->abi, config);
}

}  // namespace lockstep
