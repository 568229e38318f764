// NCCL as an engine for CUDA buffers.

// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <string>

#include "lockstep/comm/engine/nccl/communicator.h"
#include "lockstep/comm/engine/nccl/devices.h"

namespace lockstep::plugin {
namespace {

Communicator& of(void* communicator) { return *static_cast<Communicator*>(communicator); }

int probe(char* text, std::size_t capacity, lockstep_engine_error* error) {
  return guarded(error, [&] {
    require_device();
    int version = 0;
    if (const ncclResult_t told = ncclGetVersion(&version); told != ncclSuccess)
      throw Failed{Fault::unsupported, std::string("ncclGetVersion: ") + ncclGetErrorString(told)};
    copy_text(text, capacity,
              "NCCL " + std::to_string(version / 10000) + '.' +
                  std::to_string(version % 10000 / 100) + '.' + std::to_string(version % 100));
  });
}

int supports(std::uint8_t operation, std::uint8_t dtype, std::uint8_t reduce_op) {
  switch (static_cast<Operation>(operation)) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return reduction_of(dtype, reduce_op).has_value();
    case Operation::broadcast:
    case Operation::all_gather:
    case Operation::all_to_all:
      return bytes_of_element(dtype) != 0;
    default:
      return 0;
  }
}

// NCCL reads it once, before its first communicator.
void choose_interface(const char* name) {
  if (name != nullptr && *name != '\0')
    set_by_default("NCCL_SOCKET_IFNAME", '=' + std::string(name));
}

int create(const lockstep_engine_config* config, void** communicator,
           lockstep_engine_error* error) {
  return guarded(error, [&] {
    choose_interface(config->interface_name);
    *communicator = new Communicator(*config);
  });
}

void destroy(void* communicator) { delete static_cast<Communicator*>(communicator); }

void cancel(void* communicator) { of(communicator).cancel(); }

int all_reduce(void* communicator, const lockstep_buffer* data, std::uint8_t reduce_op,
               lockstep_engine_error* error) {
  return guarded(error, [&] { of(communicator).all_reduce(*data, reduce_op); });
}

int broadcast(void* communicator, const lockstep_buffer* data, std::int32_t root,
              lockstep_engine_error* error) {
  return guarded(error, [&] { of(communicator).broadcast(*data, root); });
}

int reduce(void* communicator, const lockstep_buffer* data, std::int32_t root,
           std::uint8_t reduce_op, lockstep_engine_error* error) {
  return guarded(error, [&] { of(communicator).reduce(*data, root, reduce_op); });
}

int all_gather(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
               const std::size_t* counts, lockstep_engine_error* error) {
  return guarded(error, [&] { of(communicator).all_gather(*input, *output, counts); });
}

int reduce_scatter(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
                   const std::size_t* counts, std::uint8_t reduce_op,
                   lockstep_engine_error* error) {
  return guarded(error,
                 [&] { of(communicator).reduce_scatter(*input, *output, counts, reduce_op); });
}

int all_to_all(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
               const std::size_t* send_counts, const std::size_t* receive_counts,
               lockstep_engine_error* error) {
  return guarded(
      error, [&] { of(communicator).all_to_all(*input, *output, send_counts, receive_counts); });
}

constexpr lockstep_engine engine = {
    .struct_bytes = sizeof(lockstep_engine),
    .abi = LOCKSTEP_ENGINE_ABI,
    .name = "nccl",
    .devices = 1U << 1,  // DeviceKind::cuda.
    .flags = 0,
    .probe = probe,
    .identify = nullptr,
    .tell_all = nullptr,
    .supports = supports,
    .create = create,
    .destroy = destroy,
    .cancel = cancel,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .reduce = reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
};

}  // namespace
}  // namespace lockstep::plugin

const lockstep_engine* lockstep_engine_v1(void) { return &lockstep::plugin::engine; }
