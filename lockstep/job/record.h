// Wraps the main() of a rank, so that its exception reaches everyone who needs to know:
//
//   int main(int argc, char** argv) {
//     return lockstep::record([&] { train(argc, argv); });
//   }
//
// An exception that leaves `body` goes to the other ranks, to the launcher and to stderr. The other
// ranks quote it in their Errors. The launcher shows it first. It is written to
// TORCHELASTIC_ERROR_FILE, as by torchrun's own @record, so `lockstep run` and torchrun both find
// it.
//
// Without record(), an uncaught exception reaches the other ranks and the launcher too, before the
// stack is unwound, also one of init_process_group(), which begins with installing a terminate
// handler for this. That handler then calls the former one.

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

class JobPage;

// Reports `error` to all of these except stderr. Once per process; ignores later errors.
LOCKSTEP_API void record_exception(std::exception_ptr error) noexcept;

// As record_exception(), for an exception of another language that ends this process: the other
// ranks learn at once that it does not come back. `text` is "Type: text"; `traceback` has lines, as
// that language shows them. `fault` is that of an Error of this library; of one that only reports
// another rank's failure, which the other ranks do not quote, it is peer_lost or aborted.
LOCKSTEP_API void record_last_exception(std::string_view text, std::string_view traceback,
                                        std::optional<Fault> fault) noexcept;

// record() for a `body` without its type. Returns body's exit code; after an Error of this library
// exit_code_of() its Fault, after any other exception 1.
LOCKSTEP_API int record_main(const std::function<int()>& body) noexcept;

// Runs `body` as main(). It returns an exit code, or nothing for 0.
template <std::invocable Body>
int record(Body&& body) noexcept {
  if constexpr (std::is_void_v<std::invoke_result_t<Body>>)
    return record_main([&] { return body(), 0; });
  else
    return record_main([&]() -> int { return body(); });
}

// For init_process_group(): installs the terminate handler, once. From now on an uncaught exception
// of this process is written to TORCHELASTIC_ERROR_FILE.
LOCKSTEP_API void catch_last_words();

// For init_process_group(), too: from now on record_exception() writes this process's last words to
// `slot` of `page`, which this process holds, beside those of other groups that it has not left in
// order. This stays so after its group is gone: an exception has often ended the group before it is
// caught. Calls catch_last_words().
LOCKSTEP_API void send_last_words_to(std::shared_ptr<const JobPage> page, int slot);

}  // namespace lockstep
