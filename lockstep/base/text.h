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

// The first bytes of `text`, at most `most`, without splitting a UTF-8 character.
LOCKSTEP_API std::string_view cut_text(std::string_view text, std::size_t most);

// Returns UTF-8 without control characters, cut to `most` bytes between two characters. ASCII
// control characters become spaces, C1 ones inverted question marks, and bytes that are not UTF-8
// the replacement character.
LOCKSTEP_API std::string clean_text(std::string_view text,
                                    std::size_t most = std::string_view::npos);

// Formats ascending numbers: "0-3,8".
LOCKSTEP_API std::string as_ranges(const std::vector<int>& numbers);

// "rank 3", or "ranks 0-3,8".
LOCKSTEP_API std::string name_of_ranks(const std::vector<int>& ranks);

// The peer of a message: "to rank 3" for "send", otherwise "from rank 3"; "any rank" if negative.
LOCKSTEP_API std::string other_end(std::string_view operation, int peer);

// The `ranks` that a group of `size` has, ascending, each once. Use it for input from others.
LOCKSTEP_API std::vector<int> ranks_within(std::vector<int> ranks, int size);

// Limit of the culprit ranks sent between processes; further ranks are only counted.
constexpr std::size_t most_blamed = 64;

// The error's message without fault and source location, which a second Error adds again.
LOCKSTEP_API std::string bare_text(const Error& error);

// Describes an exception: "std::runtime_error: loss is nan". LibTorch's backtrace is omitted. An
// exception not derived from std::exception gives its type only. At most about 8 KiB.
LOCKSTEP_API std::string exception_text(const std::exception_ptr& error);

// Whether the exception only reports that another rank failed or left: show that rank's own then.
LOCKSTEP_API bool is_consequence(const std::exception_ptr& error);

// The fault of an Error of this library; empty for any other exception.
LOCKSTEP_API std::optional<Fault> fault_in(const std::exception_ptr& error);

// The caller's call stack: one call per line, innermost first, without the first `skip` calls.
LOCKSTEP_API std::string call_stack(int skip);

// The line about a failure in the logs of the launcher and of every surviving rank, for programs to
// parse: docs/protocol.md. `after`: time from its first detection until this process received it.
LOCKSTEP_API std::string failure_record(std::string_view job_id, const Failure& failure,
                                        std::chrono::milliseconds after);

}  // namespace lockstep
