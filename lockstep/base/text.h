// Text for messages and logs: escaping untrusted text, rank lists, exceptions, failures.
//
// Thread safety: full. Blocking: no.

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

// At most `most` bytes, without splitting a UTF-8 character.
LOCKSTEP_API std::string_view cut_text(std::string_view text, std::size_t most);

// Returns UTF-8 without control characters, of at most `most` bytes. ASCII control characters
// become spaces, C1 ones inverted question marks, and bytes that are not UTF-8 the replacement
// character.
LOCKSTEP_API std::string clean_text(std::string_view text,
                                    std::size_t most = std::string_view::npos);

// For ascending numbers: "0-3,8".
LOCKSTEP_API std::string as_ranges(const std::vector<int>& numbers);

// "rank 3", or "ranks 0-3,8".
LOCKSTEP_API std::string name_of_ranks(const std::vector<int>& ranks);

// "to rank 3" for "send", otherwise "from rank 3". A negative peer is "any rank".
LOCKSTEP_API std::string other_end(std::string_view operation, int peer);

// The valid `ranks` of a group of `size`, ascending, each once; for lists from other processes.
LOCKSTEP_API std::vector<int> ranks_within(std::vector<int> ranks, int size);

// Limit on the culprits that a message between processes lists.
constexpr std::size_t most_blamed = 64;

struct LineDifference {
  std::size_t text = 0;  // Index of the first that differs from text 0.
  std::size_t line = 0;  // From 0.
  std::string first = {};
  std::string other = {};
};

// Empty if all texts are equal. After its end, a text has "nothing more".
LOCKSTEP_API std::optional<LineDifference> differing_line(const std::vector<std::string>& texts);

// The message without fault and source location, for another Error, which adds its own.
LOCKSTEP_API std::string bare_text(const Error& error);

// "std::runtime_error: loss is nan", without LibTorch's backtrace. An exception not derived from
// std::exception gives its type only. At most 8 KiB.
LOCKSTEP_API std::string exception_text(const std::exception_ptr& error);

// Whether the exception only reports another rank's failure or abort: show that rank's instead.
LOCKSTEP_API bool is_consequence(const std::exception_ptr& error);

// Empty for exceptions other than Error.
LOCKSTEP_API std::optional<Fault> fault_in(const std::exception_ptr& error);

// One call per line, innermost first, without the first `skip`.
LOCKSTEP_API std::string call_stack(int skip);

// A failure's line in the logs of the launcher and surviving ranks, for programs: docs/protocol.md.
// `after`: time from its first detection until this process received it.
LOCKSTEP_API std::string failure_record(std::string_view job_id, const Failure& failure,
                                        std::chrono::milliseconds after);

}  // namespace lockstep
