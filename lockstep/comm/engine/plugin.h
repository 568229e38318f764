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
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/plugin_parts.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::plugin {

// Thrown inside a plugin.
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

// Converts an exception of `act` to `error`, with Fault::system unless it is Failed.
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

// MPI and oneCCL may return from a call with unsent data, and send it only in a later call. So a
// call ends with a barrier, unless the data fit into a socket's buffer.
constexpr std::size_t sent_at_once = std::size_t{8} << 10;

// Whether a call's data fits. Equal on all members: never for an all_to_all, whose sizes may
// differ.
constexpr bool is_sent_at_once(const lockstep_collective& call) {
  return static_cast<Operation>(call.operation) != Operation::all_to_all &&
         std::max(bytes_of(call.input), bytes_of(call.output)) <= sent_at_once;
}

template <class Communicator>
struct Native {
  Operation operation;
  void (Communicator::*run)(const lockstep_collective& call);
};

// Null for a collective that the class lacks.
template <class Communicator>
constexpr const Native<Communicator>* find_native(std::uint8_t operation) {
  for (const auto& native : Communicator::natives)
    if (native.operation == static_cast<Operation>(operation)) return &native;
  return nullptr;
}

// Errors: unsupported if the class lacks it.
template <class Communicator>
void run_native(Communicator& communicator, const lockstep_collective& call) {
  const auto* native = find_native<Communicator>(call.operation);
  if (native == nullptr) {
    const std::string what(name(static_cast<Operation>(call.operation)));
    throw Failed{Fault::unsupported, "this engine has no " + what};
  }
  (communicator.*native->run)(call);
}

// The functions of an engine whose communicators are objects of one class, which has
// - A constructor from lockstep_engine_config.
// - static constexpr Native<Communicator> natives[]: the collectives of its library.
// - static bool combines(dtype, reduce_op): whether its reductions are native for these.
// - void run(const lockstep_collective&), which calls run_native().
// - cancel(), if its library can cancel.
template <class Communicator>
class EngineCalls {
 public:
  static int create(const lockstep_engine_config* config, void** communicator,
                    lockstep_engine_error* error) {
    return guarded(error, [&] { *communicator = new Communicator(*config); });
  }

  static void destroy(void* communicator) { delete static_cast<Communicator*>(communicator); }

  static int supports(std::uint8_t operation, std::uint8_t dtype, std::uint8_t reduce_op) {
    if (find_native<Communicator>(operation) == nullptr || bytes_of_element(dtype) == 0)
      return false;
    return !reduces(static_cast<Operation>(operation)) || Communicator::combines(dtype, reduce_op);
  }

  static void cancel(void* communicator) { static_cast<Communicator*>(communicator)->cancel(); }

  static int run(void* communicator, const lockstep_collective* call,
                 lockstep_engine_error* error) {
    return guarded(error, [&] { static_cast<Communicator*>(communicator)->run(*call); });
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
  engine.run = Calls::run;
  return engine;
}

}  // namespace lockstep::plugin
