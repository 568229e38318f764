// Output of commands to stdout, with an exit code for lost output.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::tools {

inline constexpr int output_error = 74;  // EX_IOERR of sysexits.h

// Buffers the text. Does nothing after a failed write.
void print(const std::string& text);

// False when stdout accepts no more.
bool flush_output();

// Call it last. True if stdout accepted all text, or is a pipe whose reader has closed; otherwise
// reports the error.
bool output_is_complete(const char* command);

// Returns `code`, or output_error if output was lost after success.
int end_output(const char* command, int code);

}  // namespace lockstep::tools
