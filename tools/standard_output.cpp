// SPDX-License-Identifier: Apache-2.0
#include "tools/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace lockstep::tools {
namespace {

int write_error = 0;  // The first failure's errno.

}  // namespace

void print(const std::string& text) {
  if (write_error != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) write_error = errno;
}

bool flush_output() {
  if (write_error == 0 && std::fflush(stdout) != 0) write_error = errno;
  return write_error == 0;
}

bool output_is_complete(const char* command) {
  if (flush_output() || write_error == EPIPE) return true;
  std::fprintf(stderr, "%s: stdout: %s\n", command, std::strerror(write_error));
  return false;
}

int end_output(const char* command, int code) {
  const bool complete = output_is_complete(command);
  return complete || code != 0 ? code : output_error;
}

}  // namespace lockstep::tools
