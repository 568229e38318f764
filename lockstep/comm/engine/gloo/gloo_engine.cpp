// Implements the engine ABI with Gloo's collectives.

// SPDX-License-Identifier: Apache-2.0
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/reduce.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/comm/engine/gloo/combine.h"
#include "lockstep/comm/engine/gloo/mesh.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::plugin {
namespace {

struct Communicator {
  std::shared_ptr<Mesh> mesh;
  std::atomic<bool> is_cancelled = false;
};

// Gloo has one type for both faults; only the text tells them apart.
Fault fault_of(const gloo::IoException& error) {
  const std::string_view text = error.what();
  const auto says = [&](std::string_view word) { return text.find(word) != text.npos; };
  return says("Timed out") || says("timeout") ? Fault::timeout : Fault::peer_lost;
}

// Runs one collective. A failure makes the communicator unusable: all its connections end. Gloo's
// thread then leaves the caller's memory alone, and the other members learn of it.
template <class Act>
int run(void* communicator, lockstep_engine_error* error, Act act) noexcept {
  auto& self = *static_cast<Communicator*>(communicator);
  const int result = guarded(error, [&] {
    try {
      act(self.mesh);
    } catch (const gloo::IoException& failed) {
      throw Failed{self.is_cancelled ? Fault::aborted : fault_of(failed), failed.what()};
    }
  });
  if (result != 0) {
    lockstep_engine_error ignored;
    guarded(&ignored, [&] { self.mesh->give_up("an earlier call failed"); });
  }
  return result;
}

// setInput() and setOutput() for elements of which Gloo needs only the size.
template <class Bytes, class Options>
void set_both(Options& options, Mesh& mesh, const lockstep_buffer& data, void* output) {
  const std::size_t bytes = bytes_of(data);
  if (data.data != output) options.template setInput<Bytes>(mesh.buffer(data.data, bytes));
  options.template setOutput<Bytes>(mesh.buffer(output, bytes));
}

template <class Options>
void set_elements(Options& options, Mesh& mesh, const lockstep_buffer& data, void* output) {
  switch (bytes_of_element(data.dtype)) {
    case 1:
      return set_both<std::uint8_t>(options, mesh, data, output);
    case 2:
      return set_both<std::uint16_t>(options, mesh, data, output);
    case 4:
      return set_both<std::uint32_t>(options, mesh, data, output);
    default:
      return set_both<std::uint64_t>(options, mesh, data, output);
  }
}

Combine combine_or_refuse(const lockstep_buffer& data, std::uint8_t reduce_op) {
  const Combine combine = combine_for(data.dtype, reduce_op);
  if (combine == nullptr) {
    throw Failed{Fault::unsupported, "Gloo's plugin does not combine these elements"};
  }
  return combine;
}

int probe(char* text, std::size_t capacity, lockstep_engine_error*) {
  const std::string version = std::to_string(GLOO_VERSION_MAJOR) + "." +
                              std::to_string(GLOO_VERSION_MINOR) + "." +
                              std::to_string(GLOO_VERSION_PATCH);
  copy_text(text, capacity, version);
  return 0;
}

int supports(std::uint8_t operation, std::uint8_t dtype, std::uint8_t reduce_op) {
  switch (static_cast<Operation>(operation)) {
    case Operation::all_reduce:
    case Operation::reduce:
      return combine_for(dtype, reduce_op) != nullptr;
    case Operation::broadcast:
    case Operation::all_gather:
    case Operation::all_to_all:
      return bytes_of_element(dtype) != 0;
    default:
      return 0;
  }
}

int create(const lockstep_engine_config* config, void** communicator,
           lockstep_engine_error* error) {
  return guarded(error, [&] {
    auto made = std::make_unique<Communicator>();
    try {
      made->mesh = std::make_shared<Mesh>(*config);
    } catch (const gloo::IoException& failed) {
      throw Failed{fault_of(failed), failed.what()};
    }
    *communicator = made.release();
  });
}

void destroy(void* communicator) { delete static_cast<Communicator*>(communicator); }

void cancel(void* communicator) {
  auto& self = *static_cast<Communicator*>(communicator);
  self.is_cancelled = true;
  lockstep_engine_error ignored;
  guarded(&ignored, [&] { self.mesh->give_up("cancelled"); });
}

int all_reduce(void* communicator, const lockstep_buffer* data, std::uint8_t reduce_op,
               lockstep_engine_error* error) {
  return run(communicator, error, [&](const std::shared_ptr<Mesh>& mesh) {
    const Combine combine = combine_or_refuse(*data, reduce_op);
    if (data->count == 0) return;
    gloo::AllreduceOptions options(mesh);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    set_elements(options, *mesh, *data, data->data);
    options.setReduceFunction(combine);
    options.setTag(mesh->next_tag());
    gloo::allreduce(options);
  });
}

int broadcast(void* communicator, const lockstep_buffer* data, std::int32_t root,
              lockstep_engine_error* error) {
  return run(communicator, error, [&](const std::shared_ptr<Mesh>& mesh) {
    if (data->count == 0) return;
    gloo::BroadcastOptions options(mesh);
    options.setOutput<char>(mesh->buffer(data->data, bytes_of(*data)));
    options.setRoot(root);
    options.setTag(mesh->next_tag());
    gloo::broadcast(options);
  });
}

int reduce(void* communicator, const lockstep_buffer* data, std::int32_t root,
           std::uint8_t reduce_op, lockstep_engine_error* error) {
  return run(communicator, error, [&](const std::shared_ptr<Mesh>& mesh) {
    const Combine combine = combine_or_refuse(*data, reduce_op);
    if (data->count == 0) return;
    // Gloo writes partial results into the output of every member.
    std::unique_ptr<std::byte[]> scratch;
    if (mesh->rank != root) scratch = std::make_unique_for_overwrite<std::byte[]>(bytes_of(*data));
    gloo::ReduceOptions options(mesh);
    set_elements(options, *mesh, *data, scratch ? scratch.get() : data->data);
    options.setRoot(root);
    options.setReduceFunction(combine);
    options.setTag(mesh->next_tag());
    gloo::reduce(options);
  });
}

// The parts of a buffer, in bytes, by member.
struct Parts {
  Parts(const lockstep_buffer& buffer, const std::size_t* counts, int size)
      : data(static_cast<std::byte*>(buffer.data)), total(bytes_of(buffer)) {
    for (int rank = 0; rank < size; ++rank)
      bytes.push_back(counts[rank] * bytes_of_element(buffer.dtype));
    std::exclusive_scan(bytes.begin(), bytes.end(), std::back_inserter(begins), std::size_t{0});
  }
  // The whole buffer, for each of `size` members.
  Parts(std::byte* all, std::size_t count, int size)
      : data(all),
        total(count),
        bytes(static_cast<std::size_t>(size), count),
        begins(static_cast<std::size_t>(size), 0) {}

  std::byte* of(int member) const { return data + begins[static_cast<std::size_t>(member)]; }

  std::byte* data;
  std::size_t total;
  std::vector<std::size_t> bytes;
  std::vector<std::size_t> begins;
};

// Sends each member its part of `send`. Like gloo::alltoallv() except for the order. There a member
// announces its receives after it has begun to send, and its peer sees that behind all sent data.
// The two directions of a link then take turns if one member comes later.
void exchange(Mesh& mesh, const Parts& send, const Parts& receive) {
  const std::uint64_t slot = gloo::Slot::build(gloo::kAlltoallSlotPrefix, mesh.next_tag());
  const auto arriving = mesh.buffer(receive.data, receive.total);
  const auto leaving = mesh.buffer(send.data, send.total);
  for (int i = 1; i < mesh.size; ++i) {
    const int peer = (mesh.rank + mesh.size - i) % mesh.size;
    const auto part = static_cast<std::size_t>(peer);
    arriving->recv(peer, slot, receive.begins[part], receive.bytes[part]);
  }
  for (int i = 1; i < mesh.size; ++i) {
    const int peer = (mesh.rank + i) % mesh.size;
    const auto part = static_cast<std::size_t>(peer);
    leaving->send(peer, slot, send.begins[part], send.bytes[part]);
  }
  const std::size_t own_bytes = send.bytes[static_cast<std::size_t>(mesh.rank)];
  if (own_bytes > 0 && send.of(mesh.rank) != receive.of(mesh.rank))
    std::memcpy(receive.of(mesh.rank), send.of(mesh.rank), own_bytes);
  const LoopThread::Preempting preempting(mesh.loop());
  for (int i = 1; i < mesh.size; ++i) {
    leaving->waitSend();
    arriving->waitRecv();
  }
}

int all_gather(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
               const std::size_t* counts, lockstep_engine_error* error) {
  return run(communicator, error, [&](const std::shared_ptr<Mesh>& mesh) {
    if (output->count == 0) return;
    const Parts parts(*output, counts, mesh->size);
    std::byte* const own = parts.of(mesh->rank);
    const std::size_t own_bytes = parts.bytes[static_cast<std::size_t>(mesh->rank)];
    const bool is_in_place = input->count == 0 || input->data == own;
    std::byte* const mine = is_in_place ? own : static_cast<std::byte*>(input->data);
    // For two members Gloo's ring, which sends first too, would need the same messages.
    if (mesh->size == 2) return exchange(*mesh, {mine, own_bytes, mesh->size}, parts);
    gloo::AllgathervOptions options(mesh);
    if (!is_in_place) options.setInput(mine, own_bytes);
    options.setOutput<std::byte>(mesh->buffer(parts.data, parts.total), parts.bytes);
    options.setTag(mesh->next_tag());
    gloo::allgatherv(options);
  });
}

int reduce_scatter(void*, const lockstep_buffer*, const lockstep_buffer*, const std::size_t*,
                   std::uint8_t, lockstep_engine_error* error) {
  return fail(error, Fault::unsupported, "Gloo has no reduce_scatter with counts");
}

int all_to_all(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
               const std::size_t* send_counts, const std::size_t* receive_counts,
               lockstep_engine_error* error) {
  return run(communicator, error, [&](const std::shared_ptr<Mesh>& mesh) {
    exchange(*mesh, {*input, send_counts, mesh->size}, {*output, receive_counts, mesh->size});
  });
}

constexpr lockstep_engine engine = {
    .struct_bytes = sizeof(lockstep_engine),
    .abi = LOCKSTEP_ENGINE_ABI,
    .name = "gloo",
    .devices = 1,  // CPU.
    .flags = LOCKSTEP_ENGINE_SWAPS,
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

const lockstep_engine* lockstep_engine_v1() { return &lockstep::plugin::engine; }
