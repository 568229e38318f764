// Text for messages and logs: escaping untrusted text, rank lists, exceptions, failures.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

constexpr std::size_t longest_character = 4;  // Bytes, in UTF-8.

// Returns the first bytes of `text`, at most `most`, without splitting a UTF-8 character.
LOCKSTEP_API std::string_view cut_text(std::string_view text, std::size_t most);

// Returns `text` as UTF-8 without control characters, cut to `most` bytes between two characters.
// An ASCII control character, such as a newline or ESC, becomes a space. A C1 control character
// becomes an inverted question mark. A byte that is not UTF-8 becomes the replacement character.
LOCKSTEP_API std::string clean_text(std::string_view text,
                                    std::size_t most = std::string_view::npos);

// Formats an ascending list of ranks or processors: "0-3,8".
LOCKSTEP_API std::string as_ranges(const std::vector<int>& numbers);

// "rank 3", or "ranks 0-3,8".
LOCKSTEP_API std::string name_of_ranks(const std::vector<int>& ranks);

// The other rank of a message: "to rank 3" for "send", else "from rank 3"; "any rank" if negative.
LOCKSTEP_API std::string other_end(std::string_view operation, int peer);

// Returns the members of `ranks` that a group of `size` has, ascending, each once. Use it for input
// from another process.
LOCKSTEP_API std::vector<int> ranks_within(std::vector<int> ranks, int size);

// Limit of the culprit ranks that one process sends to another; further ranks are only counted.
constexpr std::size_t most_blamed = 64;

// Returns the error's message for use in a second Error. It omits the leading fault and the final
// source location, which the second Error adds again.
LOCKSTEP_API std::string bare_text(const Error& error);

// Describes an exception for code that cannot catch it any more. Returns the demangled type and
// what(): "std::runtime_error: loss is nan". LibTorch's backtrace is omitted. An exception not
// derived from std::exception gives its type only. At most about 8 KiB.
LOCKSTEP_API std::string exception_text(const std::exception_ptr& error);

// Whether the exception only reports that another rank failed or left its group. Show the other
// rank's own exception then.
LOCKSTEP_API bool is_consequence(const std::exception_ptr& error);

// Returns the fault of an Error of this library; empty for any other exception.
LOCKSTEP_API std::optional<Fault> fault_in(const std::exception_ptr& error);

// Returns the caller's call stack: one call per line, innermost first, without the first `skip`
// calls.
LOCKSTEP_API std::string call_stack(int skip);

// The log line that the launcher and every surviving rank write about a failure, for programs to
// parse:
//
//   lockstep-fail job=a1b2 rank=1 host=node3 pid=4242 cause=signal:9(SIGKILL) oom=no op=all_reduce
//   seq=812 group=world detected_by=0 after_ms=12 waits_for=- differ=- call=- called=-
//
// (one line). docs/protocol.md defines the values; no value contains a space. `after`: time from
// the first detection of the failure until this process received it.
LOCKSTEP_API std::string failure_record(std::string_view job_id, const Failure& failure,
                                        std::chrono::milliseconds after);

}  // namespace lockstep
