// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

static_assert(sizeof(Buffer) == sizeof(lockstep_buffer) &&
              offsetof(Buffer, dtype) == offsetof(lockstep_buffer, dtype) &&
              offsetof(Buffer, device_index) == offsetof(lockstep_buffer, device_index) &&
              offsetof(Buffer, stream) == offsetof(lockstep_buffer, stream));

lockstep_buffer abi(const Buffer& buffer) { return std::bit_cast<lockstep_buffer>(buffer); }

std::uint8_t abi(ReduceOp op) { return static_cast<std::uint8_t>(op); }

struct StoreForEngine {
  Store& store;
  const std::string prefix;
  const Deadline deadline;
  std::exception_ptr foreign = {};  // No Error, as from a Python program's store: not for the ABI.

  std::string full(const char* key) const { return prefix + key; }

  template <class Act>
  int guarded(lockstep_engine_error* error, Act act) noexcept {
    try {
      act();
      return 0;
    } catch (const std::exception& thrown) {
      const auto* known = dynamic_cast<const Error*>(&thrown);
      if (!known) foreign = std::current_exception();
      error->fault = static_cast<std::int32_t>(known ? known->fault() : Fault::system);
      const std::string text = known ? bare_text(*known) : thrown.what();
      error->text[text.copy(error->text, sizeof error->text - 1)] = '\0';
      return 1;
    }
  }

  static int set(void* self, const char* key, const void* value, std::size_t bytes,
                 lockstep_engine_error* error) {
    auto& here = *static_cast<StoreForEngine*>(self);
    return here.guarded(error, [&] {
      here.store.set(here.full(key), {static_cast<const char*>(value), bytes});
    });
  }

  static int wait(void* self, const char* key, void* value, std::size_t capacity,
                  std::size_t* bytes, lockstep_engine_error* error) {
    auto& here = *static_cast<StoreForEngine*>(self);
    return here.guarded(error, [&] {
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

template <class Call>
void PluginCommunicator::call(Call call) const {
  lockstep_engine_error error{};
  if (call(&error) == 0) return;
  throw Error(static_cast<Fault>(error.fault), fmt::format("{}: {}", engine_.name, error.text));
}

PluginCommunicator::PluginCommunicator(const lockstep_engine& engine,
                                       const lockstep_engine_config& config)
    : engine_(engine), rank_(config.rank), size_(config.size) {
  call([&](auto* error) { return engine_.create(&config, &communicator_, error); });
}

PluginCommunicator::~PluginCommunicator() { engine_.destroy(communicator_); }

void PluginCommunicator::cancel() {
  check(engine_.cancel != nullptr, "this engine cannot cancel");
  engine_.cancel(communicator_);
}

bool PluginCommunicator::supports(Operation operation, DType dtype, ReduceOp op) const {
  return engine_.supports(static_cast<std::uint8_t>(operation), static_cast<std::uint8_t>(dtype),
                          abi(op)) != 0;
}

void PluginCommunicator::run(const comm::Collective& collective) {
  const comm::Signature& signature = collective.signature;
  const comm::PartCounts counts = comm::part_counts(collective, rank_, size_);
  const auto data_of = [](const std::vector<std::size_t>& all) {
    return all.empty() ? nullptr : all.data();
  };
  const lockstep_collective passed{.struct_bytes = sizeof passed,
                                   .operation = static_cast<std::uint8_t>(signature.operation),
                                   .reduce_op = abi(signature.op),
                                   .root = signature.root,
                                   .input = abi(collective.input),
                                   .output = abi(collective.output),
                                   .send_counts = data_of(counts.sent),
                                   .receive_counts = data_of(counts.received)};
  call([&](auto* error) { return engine_.run(communicator_, &passed, error); });
}

std::unique_ptr<PluginCommunicator> make_communicator(const CommunicatorOptions& options) {
  const std::vector<std::int32_t> ranks(options.world_ranks.begin(), options.world_ranks.end());
  // Other ranks may have a group with the same name.
  const std::string keys =
      fmt::format("{}{}/{:016x}/", options.keys, options.name, hash_of_elements(ranks));
  StoreForEngine store{*options.store, keys, in(options.timeout)};
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
  try {
    return std::make_unique<PluginCommunicator>(*options.engine->abi, config);
  } catch (const Error&) {
    if (store.foreign) std::rethrow_exception(store.foreign);
    throw;
  }
}

}  // namespace lockstep
