// SPDX-License-Identifier: Apache-2.0
#include <gloo/allgatherv.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/reduce.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/signals.h"
#include "lockstep/comm/engine/gloo/combine.h"
#include "lockstep/comm/engine/gloo/mesh.h"
#include "lockstep/comm/engine/gloo/ring.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {
namespace {

// Gloo has one type for both faults; only the text distinguishes them.
Fault fault_of(const gloo::IoException& error) {
  const std::string_view text = error.what();
  const auto says = [&](std::string_view word) { return text.find(word) != text.npos; };
  return says("Timed out") || says("timeout") ? Fault::timeout : Fault::peer_lost;
}

// For elements of which Gloo needs only the size.
template <class Bytes, class Options>
void set_both(Options& options, Mesh& mesh, const lockstep_buffer& data, void* output) {
  const std::size_t bytes = plugin::bytes_of(data);
  if (data.data != output) options.template setInput<Bytes>(mesh.buffer(data.data, bytes));
  options.template setOutput<Bytes>(mesh.buffer(output, bytes));
}

template <class Options>
void set_elements(Options& options, Mesh& mesh, const lockstep_buffer& data, void* output) {
  switch (plugin::bytes_of_element(data.dtype)) {
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
    throw plugin::Failed{Fault::unsupported, "Gloo's plugin does not combine these elements"};
  }
  return combine;
}

// Gloo's thread, which writes to connections that peers may have closed, inherits the ignored
// SIGPIPE.
std::shared_ptr<Mesh> make_mesh(const lockstep_engine_config& config) {
  const IgnoreSignals ignore{SIGPIPE};
  try {
    return std::make_shared<Mesh>(config);
  } catch (const gloo::IoException& failed) {
    throw plugin::Failed{fault_of(failed), failed.what()};
  }
}

class Communicator {
 public:
  explicit Communicator(const lockstep_engine_config& config) : mesh_(make_mesh(config)) {}

  void cancel() {
    is_cancelled_ = true;
    end_connections("cancelled");
  }

  // A failure ends all connections. Gloo's thread then no longer accesses the caller's memory, and
  // the other members detect the failure.
  void run(const lockstep_collective& call) {
    const IgnoreSignals ignore{SIGPIPE};  // As in make_mesh().
    try {
      plugin::run_native(*this, call);
    } catch (const gloo::IoException& failed) {
      const plugin::Failed told{is_cancelled_ ? Fault::aborted : fault_of(failed), failed.what()};
      end_connections("an earlier call failed");
      throw told;
    } catch (...) {
      end_connections("an earlier call failed");
      throw;
    }
  }

  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op) {
    return combine_for(dtype, reduce_op) != nullptr;
  }

  void all_reduce(const lockstep_collective& call);
  void broadcast(const lockstep_collective& call);
  void reduce(const lockstep_collective& call);
  void all_gather(const lockstep_collective& call);
  void all_to_all(const lockstep_collective& call);

  static constexpr plugin::Native<Communicator> natives[] = {
      {Operation::all_reduce, &Communicator::all_reduce},
      {Operation::broadcast, &Communicator::broadcast},
      {Operation::reduce, &Communicator::reduce},
      {Operation::all_gather, &Communicator::all_gather},
      {Operation::all_to_all, &Communicator::all_to_all},
  };

 private:
  void end_connections(const char* why) {
    lockstep_engine_error ignored;
    plugin::guarded(&ignored, [&] { mesh_->abort(why); });
  }

  const std::shared_ptr<Mesh> mesh_;
  std::atomic<bool> is_cancelled_ = false;
};

void Communicator::all_reduce(const lockstep_collective& call) {
  all_reduce_in_ring(*mesh_, call.output, combine_or_refuse(call.output, call.reduce_op));
}

void Communicator::broadcast(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  if (data.count == 0) return;
  gloo::BroadcastOptions options(mesh_);
  options.setOutput<char>(mesh_->buffer(data.data, plugin::bytes_of(data)));
  options.setRoot(call.root);
  options.setTag(mesh_->next_tag());
  gloo::broadcast(options);
}

void Communicator::reduce(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  const Combine combine = combine_or_refuse(data, call.reduce_op);
  if (data.count == 0) return;
  // Gloo writes partial results into the output of every member.
  std::unique_ptr<std::byte[]> scratch;
  if (mesh_->rank != call.root)
    scratch = std::make_unique_for_overwrite<std::byte[]>(plugin::bytes_of(data));
  gloo::ReduceOptions options(mesh_);
  set_elements(options, *mesh_, data, scratch ? scratch.get() : data.data);
  options.setRoot(call.root);
  options.setReduceFunction(combine);
  options.setTag(mesh_->next_tag());
  gloo::reduce(options);
}

// As gloo::alltoallv(), but announces all receives before it sends. Otherwise an
// announcement follows all sent data, and a link's directions run in sequence if a member
// comes later.
void exchange(Mesh& mesh, const plugin::Parts& send, const plugin::Parts& receive) {
  const std::uint64_t slot = gloo::Slot::build(gloo::kAlltoallSlotPrefix, mesh.next_tag());
  const auto arriving = mesh.buffer(receive.all.data, receive.all.bytes);
  const auto leaving = mesh.buffer(send.all.data, send.all.bytes);
  for (int i = 1; i < mesh.size; ++i) {
    const int peer = (mesh.rank + mesh.size - i) % mesh.size;
    const auto part = static_cast<std::size_t>(peer);
    arriving->recv(peer, slot, receive.begins[part], receive.sizes[part]);
  }
  for (int i = 1; i < mesh.size; ++i) {
    const int peer = (mesh.rank + i) % mesh.size;
    const auto part = static_cast<std::size_t>(peer);
    leaving->send(peer, slot, send.begins[part], send.sizes[part]);
  }
  plugin::copy_part(send[mesh.rank], receive[mesh.rank].data);
  const LoopThread::Preempting preempting(mesh.loop());
  for (int i = 1; i < mesh.size; ++i) {
    leaving->waitSend();
    arriving->waitRecv();
  }
}

void Communicator::all_gather(const lockstep_collective& call) {
  if (call.output.count == 0) return;
  const plugin::Parts parts(call.output, call.receive_counts, mesh_->size);
  const plugin::Part own = parts[mesh_->rank];
  const bool is_in_place = call.input.count == 0 || call.input.data == own.data;
  const plugin::Part mine = is_in_place ? own : plugin::whole(call.input);
  // For two members, Gloo's ring would need the same messages, and sends first too.
  if (mesh_->size == 2) return exchange(*mesh_, {mine, mesh_->size}, parts);
  gloo::AllgathervOptions options(mesh_);
  if (!is_in_place) options.setInput(mine.data, mine.bytes);
  options.setOutput<std::byte>(mesh_->buffer(parts.all.data, parts.all.bytes), parts.sizes);
  options.setTag(mesh_->next_tag());
  gloo::allgatherv(options);
}

void Communicator::all_to_all(const lockstep_collective& call) {
  exchange(*mesh_, {call.input, call.send_counts, mesh_->size},
           {call.output, call.receive_counts, mesh_->size});
}

int probe(char* text, std::size_t capacity, lockstep_engine_error*) {
  const std::string version = std::to_string(GLOO_VERSION_MAJOR) + "." +
                              std::to_string(GLOO_VERSION_MINOR) + "." +
                              std::to_string(GLOO_VERSION_PATCH);
  plugin::copy_text(text, capacity, version);
  return 0;
}

constexpr lockstep_engine engine = plugin::engine_of<Communicator>({
    .name = "gloo",
    .flags = LOCKSTEP_ENGINE_SWAPS,
    .probe = probe,
});

}  // namespace
}  // namespace lockstep::comm::engines

const lockstep_engine* lockstep_engine_v1() { return &lockstep::comm::engines::engine; }
