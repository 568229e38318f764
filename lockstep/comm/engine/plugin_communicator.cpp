// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin_communicator.h"

#include <fmt/format.h>

#include <cstddef>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

static_assert(sizeof(Buffer) == sizeof(lockstep_buffer) &&
              offsetof(Buffer, dtype) == offsetof(lockstep_buffer, dtype) &&
              offsetof(Buffer, device_index) == offsetof(lockstep_buffer, device_index) &&
              offsetof(Buffer, stream) == offsetof(lockstep_buffer, stream));

const lockstep_buffer* abi(const Buffer& buffer) {
  return reinterpret_cast<const lockstep_buffer*>(&buffer);
}

std::uint8_t abi(ReduceOp op) { return static_cast<std::uint8_t>(op); }

}  // namespace

template <class Call>
void PluginCommunicator::call(Call call) const {
  lockstep_engine_error error{};
  if (call(&error) == 0) return;
  throw Error(static_cast<Fault>(error.fault), fmt::format("{}: {}", engine_.name, error.text));
}

PluginCommunicator::PluginCommunicator(const lockstep_engine& engine,
                                       const lockstep_engine_config& config)
    : engine_(engine) {
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

void PluginCommunicator::all_reduce(const Buffer& data, ReduceOp op) {
  call([&](auto* error) { return engine_.all_reduce(communicator_, abi(data), abi(op), error); });
}

void PluginCommunicator::broadcast(const Buffer& data, int root) {
  call([&](auto* error) { return engine_.broadcast(communicator_, abi(data), root, error); });
}

void PluginCommunicator::reduce(const Buffer& data, int root, ReduceOp op) {
  call([&](auto* error) { return engine_.reduce(communicator_, abi(data), root, abi(op), error); });
}

void PluginCommunicator::all_gather(const Buffer& input, const Buffer& output, Counts counts) {
  call([&](auto* error) {
    return engine_.all_gather(communicator_, abi(input), abi(output), counts.data(), error);
  });
}

void PluginCommunicator::reduce_scatter(const Buffer& input, const Buffer& output, Counts counts,
                                        ReduceOp op) {
  call([&](auto* error) {
    return engine_.reduce_scatter(communicator_, abi(input), abi(output), counts.data(), abi(op),
                                  error);
  });
}

void PluginCommunicator::all_to_all(const Buffer& input, const Buffer& output, Counts send_counts,
                                    Counts receive_counts) {
  call([&](auto* error) {
    return engine_.all_to_all(communicator_, abi(input), abi(output), send_counts.data(),
                              receive_counts.data(), error);
  });
}

}  // namespace lockstep
