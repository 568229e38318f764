// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/signals.h"
#include "lockstep/comm/engine/oneccl/library.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {
namespace {

using std::chrono::steady_clock;

// --- Types and operations with the core's results -----------------------------------------------

// Not bool, and not float16 and bfloat16, whose sums the core rounds once.
std::optional<ccl::datatype> number_of(std::uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::float32:
      return ccl::datatype::float32;
    case DType::float64:
      return ccl::datatype::float64;
    case DType::int8:
      return ccl::datatype::int8;
    case DType::int16:
      return ccl::datatype::int16;
    case DType::int32:
      return ccl::datatype::int32;
    case DType::int64:
      return ccl::datatype::int64;
    case DType::uint8:
      return ccl::datatype::uint8;
    case DType::uint16:
      return ccl::datatype::uint16;
    case DType::uint32:
      return ccl::datatype::uint32;
    case DType::uint64:
      return ccl::datatype::uint64;
    case DType::bfloat16:
    case DType::float16:
    case DType::boolean:
      return std::nullopt;
  }
  return std::nullopt;
}

// oneCCL's minimum and maximum of floating-point numbers lose NaN.
std::optional<ccl::reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op) {
  const auto type = static_cast<DType>(dtype);
  const bool is_integer = type != DType::float32 && type != DType::float64;
  switch (static_cast<ReduceOp>(reduce_op)) {
    case ReduceOp::sum:
      return ccl::reduction::sum;
    case ReduceOp::product:
      return ccl::reduction::prod;
    case ReduceOp::min:
      return is_integer ? std::optional(ccl::reduction::min) : std::nullopt;
    case ReduceOp::max:
      return is_integer ? std::optional(ccl::reduction::max) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// Spins for the time of a short call, then yields the core.
class Patience {
 public:
  void pause() {
    if (++turns_ < 1000) return;
    if (turns_ < 20'000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  int turns_ = 0;
};

bool has_come(ccl::event& event) {
  try {
    return event.test();
  } catch (const std::exception& failed) {
    progress().abort();
    // A running call can fail only through its connections.
    throw plugin::Failed{Fault::peer_lost, failed.what()};
  }
}

// --- Making one ---------------------------------------------------------------------------------

// Serializes a process's creation of communicators: two at once would get the same
// number. The core makes them in the same order everywhere; otherwise members would
// deadlock.
std::unique_lock<std::timed_mutex> take_turn(std::chrono::milliseconds timeout) {
  static std::timed_mutex mutex;
  std::unique_lock lock(mutex, timeout);
  if (!lock) {
    throw plugin::Failed{Fault::timeout, "another communicator of oneCCL is still being made here"};
  }
  return lock;
}

// oneCCL waits minutes for a missing member; the store has this call's deadline.
void meet(const lockstep_engine_config& config) {
  const plugin::Store store(config.store);
  store.set("here/" + std::to_string(config.rank), std::string_view("1"));
  for (int rank = 0; rank < config.size; ++rank) store.wait("here/" + std::to_string(rank));
}

ccl::shared_ptr_class<ccl::kvs> make_kvs(const lockstep_engine_config& config) {
  const plugin::Store store(config.store);
  if (config.rank == 0) {
    auto kvs = ccl::create_main_kvs();
    store.set("kvs", kvs->get_address());
    return kvs;
  }
  ccl::kvs::address_type address;
  const std::string found = store.wait("kvs");
  if (found.size() != address.size())
    throw plugin::Failed{Fault::corrupt, "kvs is not what oneCCL has written"};
  found.copy(address.data(), address.size());
  return ccl::create_kvs(address);
}

class Communicator {
 public:
  // Collective. Blocking, for `timeout_ms` at most.
  explicit Communicator(const lockstep_engine_config& config);

  void cancel() { is_cancelled_ = true; }

  void run(const lockstep_collective& call) {
    plugin::run_native(*this, call);
    if (!plugin::is_sent_at_once(call)) await_all();
  }

  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op) {
    return number_of(dtype) && reduction_of(dtype, reduce_op);
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
  static void require_combines(const lockstep_buffer& data, std::uint8_t reduce_op) {
    if (!combines(data.dtype, reduce_op))
      throw plugin::Failed{Fault::unsupported, "oneCCL's plugin does not combine these elements"};
  }

  template <class Begin>
  void complete(Begin begin);
  void poll(ccl::event& event) const;
  void await_all();

  const std::chrono::milliseconds timeout_;
  ccl::shared_ptr_class<ccl::kvs> kvs_;
  std::optional<ccl::communicator> ccl_;
  std::atomic<bool> is_cancelled_ = false;
  std::int32_t arrivals_ = 0;
};

Communicator::Communicator(const lockstep_engine_config& config)
    : timeout_(config.call_timeout_ms) {
  // oneCCL's address service writes to connections that may be closed. Its threads inherit this.
  const IgnoreSignals ignore{SIGPIPE};
  const auto turn = take_turn(std::chrono::milliseconds(config.timeout_ms));
  meet(config);
  start_library(config);
  kvs_ = make_kvs(config);
  ccl_.emplace(ccl::create_communicator(config.size, config.rank, kvs_));
}

// Throws Failed when the call was aborted.
void Communicator::poll(ccl::event& event) const {
  const auto deadline = steady_clock::now() + timeout_;
  for (Patience patience;; patience.pause()) {
    const auto lock = progress().enter();
    if (has_come(event)) return;
    if (is_cancelled_) {
      progress().abort();
      throw plugin::Failed{Fault::aborted, "cancelled"};
    }
    if (steady_clock::now() > deadline) {
      progress().abort();
      throw plugin::Failed{Fault::timeout, "not complete after " +
                                               std::to_string(timeout_.count()) +
                                               " ms; a member is slow or gone"};
    }
  }
}

// Completes an operation that returns an event, begin(communicator).
template <class Begin>
void Communicator::complete(Begin begin) {
  // oneCCL's destructor waits for an incomplete event, which is therefore never freed.
  auto event = std::make_unique<std::optional<ccl::event>>();
  try {
    {
      const auto lock = progress().enter();
      event->emplace(begin(*ccl_));
    }
    poll(**event);
  } catch (...) {
    static_cast<void>(event.release());
    throw;
  }
}

// A barrier. oneCCL's own blocks other threads' calls.
void Communicator::await_all() {
  complete([&](const ccl::communicator& ccl) {
    return ccl::allreduce(&arrivals_, &arrivals_, 1, ccl::datatype::int32, ccl::reduction::max,
                          ccl);
  });
}

void Communicator::all_reduce(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  complete([&](const ccl::communicator& ccl) {
    require_combines(data, call.reduce_op);
    return ccl::allreduce(data.data, data.data, data.count, *number_of(data.dtype),
                          *reduction_of(data.dtype, call.reduce_op), ccl);
  });
}

void Communicator::broadcast(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  complete([&](const ccl::communicator& ccl) {
    return ccl::broadcast(data.data, plugin::bytes_of(data), ccl::datatype::uint8, call.root, ccl);
  });
}

void Communicator::reduce(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  complete([&](const ccl::communicator& ccl) {
    require_combines(data, call.reduce_op);
    return ccl::reduce(data.data, data.data, data.count, *number_of(data.dtype),
                       *reduction_of(data.dtype, call.reduce_op), call.root, ccl);
  });
}

void Communicator::all_gather(const lockstep_collective& call) {
  const lockstep_buffer& input = call.input;
  complete([&](const ccl::communicator& ccl) {
    const plugin::Parts parts(call.output, call.receive_counts, ccl.size());
    // When nothing is sent, the input may be anywhere; oneCCL refuses places within the output.
    const void* own = input.count != 0 ? input.data : parts[ccl.rank()].data;
    return ccl::allgatherv(own, plugin::bytes_of(input), call.output.data, parts.sizes,
                           ccl::datatype::uint8, ccl);
  });
}

void Communicator::all_to_all(const lockstep_collective& call) {
  complete([&](const ccl::communicator& ccl) {
    const plugin::Parts sent(call.input, call.send_counts, ccl.size());
    const plugin::Parts received(call.output, call.receive_counts, ccl.size());
    return ccl::alltoallv(call.input.data, sent.sizes, call.output.data, received.sizes,
                          ccl::datatype::uint8, ccl);
  });
}

int probe(char* text, std::size_t capacity, lockstep_engine_error* error) {
  return plugin::guarded(error, [&] {
    const ccl::library_version version = ccl::get_library_version();
    plugin::copy_text(text, capacity,
                      std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
                          std::to_string(version.update));
  });
}

// Keeps the communicator: to end one, oneCCL calls its rendezvous service, and ends the process if
// that is gone.
void destroy(void*) {}

constexpr lockstep_engine engine = plugin::engine_of<Communicator>({
    .name = "oneccl",
    .flags = LOCKSTEP_ENGINE_ORDERED | LOCKSTEP_ENGINE_MAY_STAY,
    .probe = probe,
    .destroy = destroy,
});

}  // namespace
}  // namespace lockstep::comm::engines

const lockstep_engine* lockstep_engine_v1() { return &lockstep::comm::engines::engine; }
