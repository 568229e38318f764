// The engine ABI with torch.distributed's ProcessGroupGloo. Python creates the object, because
// PyTorch does not install Gloo's headers. Calls cannot be cancelled.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/torch_engine.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/intrusive_ptr.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/plugin.h"
#include "lockstep/torch_backend/gil.h"

namespace lockstep::torch_backend {
namespace {

using plugin::Failed;

using Bytes = std::vector<std::uint8_t>;
using Tensors = std::vector<at::Tensor>;

// Gloo has one exception type for all faults.
Failed failed_with(const char* text) {
  const std::string_view all = text;
  const auto says = [&](std::string_view word) { return all.find(word) != all.npos; };
  const bool is_late = says("Timed out") || says("timeout") || says("timed out");
  return {is_late ? Fault::timeout : Fault::peer_lost, text};
}

// --- Meeting -------------------------------------------------------------------------------------

// For ProcessGroupGloo's constructor, which calls set() and get().
class MeetingStore final : public c10d::Store {
 public:
  explicit MeetingStore(const plugin::Store& store) : store_(store) {}

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<MeetingStore>(store_); }

  void set(const std::string& key, const Bytes& value) override { store_.set(key, value); }
  Bytes get(const std::string& key) override { return store_.wait<Bytes>(key); }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

  std::int64_t add(const std::string&, std::int64_t) override { refuse("add"); }
  bool deleteKey(const std::string&) override { refuse("deleteKey"); }
  bool check(const std::vector<std::string>&) override { refuse("check"); }
  std::int64_t getNumKeys() override { refuse("getNumKeys"); }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw Failed{Fault::bug, std::string("Gloo calls ") + what + "() of its store"};
  }

  const plugin::Store store_;
};

py::object class_of_gloo() {
  const auto library = py::module_::import("torch._C._distributed_c10d");
  return py::getattr(library, "ProcessGroupGloo", py::none());
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const lockstep_engine_config& config) {
  const WithGil gil;
  try {
    const py::object gloo = class_of_gloo();
    // A lazy device would use the store later, in calls.
    const py::object device = gloo.attr("create_device")(py::arg("hostname") = config.address,
                                                         py::arg("lazy_init") = false);
    py::object options = gloo.attr("_Options")();
    options.attr("_devices") = py::make_tuple(device);
    options.attr("_timeout") = std::chrono::milliseconds(config.call_timeout_ms);
    c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<MeetingStore>(plugin::Store(config.store));
    return gloo(store, config.rank, config.size, options).cast<c10::intrusive_ptr<c10d::Backend>>();
  } catch (const py::error_already_set& error) {  // Its destruction needs the GIL.
    throw failed_with(error.what());
  }
}

// --- Collectives ---------------------------------------------------------------------------------

c10d::ReduceOp op_of(std::uint8_t reduce_op) {
  switch (static_cast<ReduceOp>(reduce_op)) {
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

c10::ScalarType type_of(std::uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::float32:
      return c10::kFloat;
    case DType::float64:
      return c10::kDouble;
    case DType::int32:
      return c10::kInt;
    case DType::int64:
      return c10::kLong;
    default:
      return c10::kByte;
  }
}

Tensors tensors_of(const plugin::Part& part) {
  return {at::from_blob(part.data, {static_cast<std::int64_t>(part.bytes)}, c10::kByte)};
}

// For one thread at a time. A failed call may still use its memory, which the core keeps.
class Communicator {
 public:
  explicit Communicator(const lockstep_engine_config& config)
      : gloo_(make_gloo(config)), rank_(config.rank), size_(config.size) {}

  void run(const lockstep_collective& call) {
    try {
      plugin::run_native(*this, call);
    } catch (const Failed&) {
      throw;
    } catch (const std::exception& error) {
      throw failed_with(error.what());
    }
  }

  // Gloo's min and max lose NaN.
  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op) {
    const auto op = static_cast<ReduceOp>(reduce_op);
    const bool is_integer = type_of(dtype) == c10::kInt || type_of(dtype) == c10::kLong;
    if (op == ReduceOp::min || op == ReduceOp::max) return is_integer;
    return (op == ReduceOp::sum || op == ReduceOp::product) && type_of(dtype) != c10::kByte;
  }

  void all_reduce(const lockstep_collective& call) {
    const lockstep_buffer& data = call.output;
    if (data.count == 0) return;
    Tensors tensors{
        at::from_blob(data.data, {static_cast<std::int64_t>(data.count)}, type_of(data.dtype))};
    c10d::AllreduceOptions options;
    options.reduceOp = op_of(call.reduce_op);
    gloo_->allreduce(tensors, options)->wait();
  }

  void broadcast(const lockstep_collective& call) {
    if (call.output.count == 0) return;
    Tensors tensors = tensors_of(plugin::whole(call.output));
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    gloo_->broadcast(tensors, options)->wait();
  }

  void all_gather(const lockstep_collective& call) {
    const plugin::Parts parts(call.output, call.receive_counts, size_);
    const plugin::Part mine = parts[rank_];
    plugin::copy_part(plugin::whole(call.input), mine.data);
    exchange({mine, size_}, parts);
  }

  void all_to_all(const lockstep_collective& call) {
    const plugin::Parts sent(call.input, call.send_counts, size_);
    const plugin::Parts received(call.output, call.receive_counts, size_);
    plugin::copy_part(sent[rank_], received[rank_].data);
    exchange(sent, received);
  }

  static constexpr plugin::Native<Communicator> natives[] = {
      {Operation::all_reduce, &Communicator::all_reduce},
      {Operation::broadcast, &Communicator::broadcast},
      {Operation::all_gather, &Communicator::all_gather},
      {Operation::all_to_all, &Communicator::all_to_all},
  };

 private:
  void exchange(const plugin::Parts& sent, const plugin::Parts& received) {
    constexpr int tag = 0;  // Messages between two members keep their order.
    std::vector<c10::intrusive_ptr<c10d::Work>> messages;
    for (int i = 1; i < size_; ++i) {
      const int peer = (rank_ + size_ - i) % size_;
      Tensors part = tensors_of(received[peer]);
      if (part[0].numel() > 0) messages.push_back(gloo_->recv(part, peer, tag));
    }
    for (int i = 1; i < size_; ++i) {
      const int peer = (rank_ + i) % size_;
      Tensors part = tensors_of(sent[peer]);
      if (part[0].numel() > 0) messages.push_back(gloo_->send(part, peer, tag));
    }
    for (const auto& message : messages) message->wait();
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int rank_;
  const int size_;
};

int probe(char* text, std::size_t capacity, lockstep_engine_error*) {
  plugin::copy_text(text, capacity, "in PyTorch " TORCH_VERSION);
  return 0;
}

constexpr lockstep_engine engine = plugin::engine_of<Communicator>({
    .name = "torch",
    .flags = LOCKSTEP_ENGINE_SWAPS,
    .probe = probe,
});

}  // namespace

void bring_torch_engine() {
  if (!class_of_gloo().is_none()) bring_engine(engine);
}

}  // namespace lockstep::torch_backend
