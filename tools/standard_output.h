// Output of our commands to stdout, with an exit code that tells of lost output.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::tools {

inline constexpr int output_error = 74;  // EX_IOERR of sysexits.h

// Buffers the text. After stdout has refused some text, nothing more is printed.
void print(const std::string& text);

// Writes the buffer. Returns false when stdout takes no more.
bool flush_output();

// To be called last. Returns true if stdout took all text, or is a pipe whose reader has closed it;
// otherwise reports the error.
bool output_is_complete(const char* command);

// Returns the exit code of a command that would end with `code`. After success, this is
// output_error if output was lost.
int end_output(const char* command, int code);

}  // namespace lockstep::tools
