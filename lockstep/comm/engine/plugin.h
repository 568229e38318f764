// Helpers for plugins: errors across the C ABI, and sizes of the core's types.
//
// Everything is inline: a plugin links neither the core nor LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/job/operation.h"

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

// Runs `act` and turns its exception into `error`. Exceptions of the library underneath become
// Fault::system.
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

constexpr std::size_t bytes_of_element(std::uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr std::size_t bytes_of(const lockstep_buffer& buffer) {
  return buffer.count * bytes_of_element(buffer.dtype);
}

// Sets a variable that the library underneath reads, unless the user has set it.
inline void set_by_default(const char* name, const std::string& value) {
  constexpr int keep_what_is_there = 0;
  setenv(name, value.c_str(), keep_what_is_there);
}

// For libraries that move data only while a thread is in one of their calls, as MPI and oneCCL do.
// A member may leave a call as soon as it has received everything, while some of its own data is
// still queued. Its peers would then wait for its next call. So a call ends with a barrier, after
// which all data have arrived. Not needed if the data fit into a socket's buffer, which is empty
// when the call begins.
constexpr std::size_t sent_at_once = std::size_t{8} << 10;
constexpr std::size_t of_any_size =
    std::numeric_limits<std::size_t>::max();  // For members that know different sizes.

}  // namespace lockstep::plugin
