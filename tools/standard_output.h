// What our commands print: to stdout, with an exit code that tells when it did not get there.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::tools {

inline constexpr int output_error = 74;  // EX_IOERR of sysexits.h

// Buffered. What stdout does not take, and all that follows it, is not printed.
void print(const std::string& text);

// Hands on what is buffered. False when stdout takes no more.
bool flush_output();

// To be called last. Whether stdout took everything, or is a pipe whose reader has seen enough;
// else says what went wrong.
bool output_is_complete(const char* command);

// The exit code of a command that would end with `code`: after success, output_error when its
// output is not complete.
int end_output(const char* command, int code);

}  // namespace lockstep::tools
