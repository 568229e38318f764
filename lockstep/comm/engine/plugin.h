// For plugins, which link neither the core nor LibTorch: errors across the C ABI, the core's store,
// and an engine made of a class.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/plugin_parts.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::plugin {

// Thrown inside a plugin; guarded() converts it.
struct Failed {
  Fault fault;
  std::string text;
};

inline void copy_text(char* to, std::size_t capacity, std::string_view text) {
  const std::size_t bytes = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

inline int fail(lockstep_engine_error* error, Fault fault, std::string_view text) {
  error->fault = static_cast<std::int32_t>(fault);
  copy_text(error->text, sizeof error->text, text);
  return 1;
}

// Converts an exception of `act` to `error`; one of the library underneath to Fault::system.
template <class Act>
int guarded(lockstep_engine_error* error, Act act) noexcept {
  try {
    act();
    return 0;
  } catch (const Failed& failed) {
    return fail(error, failed.fault, failed.text);
  } catch (const std::exception& other) {
    return fail(error, Fault::system, other.what());
  } catch (...) {
    return fail(error, Fault::system, "an exception of an unknown type");
  }
}

// Sets a variable that the library underneath reads, unless the user has set it.
inline void set_by_default(const char* name, const std::string& value) {
  constexpr int keep_what_is_there = 0;
  setenv(name, value.c_str(), keep_what_is_there);
}

// The core's store, while create() runs. Errors: Failed with the store's fault and text.
class Store {
 public:
  explicit Store(const lockstep_engine_store& store) : store_(store) {}

  template <class Bytes>
  void set(const std::string& key, const Bytes& value) const {
    lockstep_engine_error error{};
    if (store_.set(store_.self, key.c_str(), value.data(), value.size(), &error) != 0)
      throw_failed(error);
  }

  // Blocks until a member has set `key`.
  template <class Bytes = std::string>
  Bytes wait(const std::string& key) const {
    Bytes value;
    value.resize(std::size_t{4} << 10);
    while (true) {
      lockstep_engine_error error{};
      std::size_t bytes = 0;
      if (store_.wait(store_.self, key.c_str(), value.data(), value.size(), &bytes, &error) != 0)
        throw_failed(error);
      const bool is_whole = bytes <= value.size();
      value.resize(bytes);
      if (is_whole) return value;
    }
  }

 private:
  [[noreturn]] static void throw_failed(const lockstep_engine_error& error) {
    throw Failed{static_cast<Fault>(error.fault), error.text};
  }

  lockstep_engine_store store_;
};

// --- An engine of one class ----------------------------------------------------------------------

// MPI and oneCCL may return from a call with unsent data, and send it only in a later call. So a
// call ends with a barrier, unless the data fit into a socket's buffer.
constexpr std::size_t sent_at_once = std::size_t{8} << 10;
// For members with different sizes.
constexpr std::size_t of_any_size = std::numeric_limits<std::size_t>::max();

// The functions of an engine whose communicators are objects of one class. It has
// - A constructor from lockstep_engine_config.
// - The collectives of lockstep_engine, except reduce() and reduce_scatter() if the library lacks
//   them.
// - static bool combines(dtype, reduce_op): whether its reductions are native for these.
// - Optionally run(bytes, act), which calls the collective act(). `bytes` is the total that it
//   moves, the same on all members.
template <class Communicator>
class EngineCalls {
 public:
  static int create(const lockstep_engine_config* config, void** communicator,
                    lockstep_engine_error* error) {
    return guarded(error, [&] { *communicator = new Communicator(*config); });
  }

  static void destroy(void* communicator) { delete static_cast<Communicator*>(communicator); }

  static int supports(std::uint8_t operation, std::uint8_t dtype, std::uint8_t reduce_op) {
    const auto asked = static_cast<Operation>(operation);
    if (reduces(asked)) return has(asked) && Communicator::combines(dtype, reduce_op);
    const bool moves = asked == Operation::broadcast || asked == Operation::all_gather ||
                       asked == Operation::all_to_all;
    return moves && bytes_of_element(dtype) != 0;
  }

  static void cancel(void* communicator) { static_cast<Communicator*>(communicator)->cancel(); }

  static int all_reduce(void* communicator, const lockstep_buffer* data, std::uint8_t reduce_op,
                        lockstep_engine_error* error) {
    return run(communicator, bytes_of(*data), error,
               [&](Communicator& self) { self.all_reduce(*data, reduce_op); });
  }

  static int broadcast(void* communicator, const lockstep_buffer* data, std::int32_t root,
                       lockstep_engine_error* error) {
    return run(communicator, bytes_of(*data), error,
               [&](Communicator& self) { self.broadcast(*data, root); });
  }

  static int reduce(void* communicator, const lockstep_buffer* data, std::int32_t root,
                    std::uint8_t reduce_op, lockstep_engine_error* error) {
    if constexpr (has_reduce)
      return run(communicator, bytes_of(*data), error,
                 [&](Communicator& self) { self.reduce(*data, root, reduce_op); });
    else
      return fail(error, Fault::unsupported, "this engine has no reduce");
  }

  static int all_gather(void* communicator, const lockstep_buffer* input,
                        const lockstep_buffer* output, const std::size_t* counts,
                        lockstep_engine_error* error) {
    return run(communicator, bytes_of(*output), error,
               [&](Communicator& self) { self.all_gather(*input, *output, counts); });
  }

  static int reduce_scatter(void* communicator, const lockstep_buffer* input,
                            const lockstep_buffer* output, const std::size_t* counts,
                            std::uint8_t reduce_op, lockstep_engine_error* error) {
    if constexpr (has_reduce_scatter)
      return run(communicator, bytes_of(*input), error, [&](Communicator& self) {
        self.reduce_scatter(*input, *output, counts, reduce_op);
      });
    else
      return fail(error, Fault::unsupported, "this engine has no reduce_scatter with counts");
  }

  static int all_to_all(void* communicator, const lockstep_buffer* input,
                        const lockstep_buffer* output, const std::size_t* send_counts,
                        const std::size_t* receive_counts, lockstep_engine_error* error) {
    return run(communicator, of_any_size, error, [&](Communicator& self) {
      self.all_to_all(*input, *output, send_counts, receive_counts);
    });
  }

 private:
  static constexpr bool has_reduce = requires(Communicator& self, const lockstep_buffer& buffer) {
    self.reduce(buffer, std::int32_t{}, std::uint8_t{});
  };
  static constexpr bool has_reduce_scatter =
      requires(Communicator& self, const lockstep_buffer& buffer, const std::size_t* counts) {
        self.reduce_scatter(buffer, buffer, counts, std::uint8_t{});
      };

  static constexpr bool has(Operation reduction) {
    return reduction == Operation::reduce           ? has_reduce
           : reduction == Operation::reduce_scatter ? has_reduce_scatter
                                                    : true;
  }

  template <class Act>
  static int run(void* communicator, std::size_t bytes, lockstep_engine_error* error, Act act) {
    auto& self = *static_cast<Communicator*>(communicator);
    return guarded(error, [&] {
      if constexpr (requires { self.run(bytes, [] {}); })
        self.run(bytes, [&] { act(self); });
      else
        act(self);
    });
  }
};

struct EngineParts {
  const char* name = nullptr;
  DeviceKind device = DeviceKind::cpu;
  std::uint32_t flags = 0;
  decltype(lockstep_engine::probe) probe = nullptr;
  decltype(lockstep_engine::identify) identify = nullptr;
  decltype(lockstep_engine::tell_all) tell_all = nullptr;
  decltype(lockstep_engine::destroy) destroy = nullptr;  // Null: deletes the communicator.
};

// The engine has a cancel() if Communicator has one.
template <class Communicator>
constexpr lockstep_engine engine_of(const EngineParts& parts) {
  using Calls = EngineCalls<Communicator>;
  lockstep_engine engine = {};
  engine.struct_bytes = sizeof engine;
  engine.abi = LOCKSTEP_ENGINE_ABI;
  engine.name = parts.name;
  engine.devices = 1U << static_cast<unsigned>(parts.device);
  engine.flags = parts.flags;
  engine.probe = parts.probe;
  engine.identify = parts.identify;
  engine.tell_all = parts.tell_all;
  engine.supports = Calls::supports;
  engine.create = Calls::create;
  engine.destroy = parts.destroy != nullptr ? parts.destroy : Calls::destroy;
  if constexpr (requires(Communicator& self) { self.cancel(); }) engine.cancel = Calls::cancel;
  engine.all_reduce = Calls::all_reduce;
  engine.broadcast = Calls::broadcast;
  engine.reduce = Calls::reduce;
  engine.all_gather = Calls::all_gather;
  engine.reduce_scatter = Calls::reduce_scatter;
  engine.all_to_all = Calls::all_to_all;
  return engine;
}

}  // namespace lockstep::plugin
