// What main() of a rank is best wrapped in, so that everybody learns why it failed:
//
//   int main(int argc, char** argv) {
//     return lockstep::record([&] { train(argc, argv); });
//   }
//
// An exception that leaves `body` is told to the other ranks, whose Errors then quote it; to the
// launcher, which shows it first (`lockstep run` and torchrun alike: it is written to
// TORCHELASTIC_ERROR_FILE, as torchrun's own @record does); and to stderr. Exceptions that nobody
// catches are told to the same readers even without record(), before anything is unwound, by a
// terminate handler that init_process_group() installs before the one that was there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <type_traits>

#include "lockstep/base/api.h"

namespace lockstep {

// Tells of `error` whoever should know, but for stderr; once per process, later ones are dropped.
LOCKSTEP_API void record_exception(std::exception_ptr error) noexcept;

// `body` without its type. Returns what it does, or for an exception exit_code_of() its Fault when
// it is an Error of ours and 1 when it is any other.
LOCKSTEP_API int record_main(const std::function<int()>& body) noexcept;

// Runs `body`, which returns an exit code or nothing (0), as main().
template <std::invocable Body>
int record(Body&& body) noexcept {
  if constexpr (std::is_void_v<std::invoke_result_t<Body>>)
    return record_main([&] { return body(), 0; });
  else
    return record_main([&]() -> int { return body(); });
}

}  // namespace lockstep
