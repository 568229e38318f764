// Wraps main() of a rank and reports its exception to the other ranks, the launcher and stderr.
//
//   int main() { return lockstep::record([] { train(); }); }
//
// Other ranks quote the exception in their Errors; the launcher shows it first.
// TORCHELASTIC_ERROR_FILE gets it, as by torchrun's @record. Without record(), a terminate handler
// does the same. The library installs that handler when a C++ program of `lockstep run` or torchrun
// loads the library; otherwise init_process_group() does. The handler then calls the previous one,
// except the default one where `lockstep run` reports instead.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

class JobControlBlock;

// Reports `error` as record() does, except to stderr. Only a process's first report counts.
LOCKSTEP_API void record_exception(std::exception_ptr error) noexcept;

// As record_exception(), for an exception of another language that ends this process. The other
// ranks then fail at once. `text` is "Type: text"; `traceback` has the lines that the other
// language prints; `fault` is an Error's. With peer_lost or aborted, consequences of another rank's
// failure, the other ranks get no report.
LOCKSTEP_API void record_last_exception(std::string_view text, std::string_view traceback,
                                        std::optional<Fault> fault) noexcept;

// Returns body's exit code; exit_code_of() after an Error, 1 after another exception.
LOCKSTEP_API int record_main(const std::function<int()>& body) noexcept;

// As record_main(); a `body` without a result returns 0.
template <std::invocable Body>
int record(Body&& body) noexcept {
  if constexpr (std::is_void_v<std::invoke_result_t<Body>>)
    return record_main([&] { return body(), 0; });
  else
    return record_main([&]() -> int { return body(); });
}

// For init_process_group(): installs the terminate handler once, unless the library has done so.
LOCKSTEP_API void report_uncaught_exceptions();

// For init_process_group(): record_exception() then also writes the exit report to `slot`. An
// exception often ends the group before it is caught, so the slot stays registered. Forgets this
// process's earlier slots that it has left in order.
LOCKSTEP_API void send_exit_report_to(std::shared_ptr<const JobControlBlock> page, int slot);

}  // namespace lockstep
