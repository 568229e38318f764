// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

namespace lockstep {
namespace {

std::string compose(Fault fault, std::string_view message, std::source_location where) {
  const std::string_view path = where.file_name();
  const auto ours = path.rfind("lockstep/");  // The build machine's folders tell a user nothing.
  return fmt::format("{}: {} [{}:{}]", name(fault), message,
                     ours == path.npos ? path : path.substr(ours), where.line());
}

// A rank's text is data: it may not move a reader's cursor. C1 controls are C2 80 to C2 9F in UTF-8.
std::string one_line(std::string text) {
  char before = 0;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool c1 = before == '\xC2' && byte >= 0x80 && byte < 0xA0;
    before = c;
    if (byte < 0x20 || byte == 0x7F) c = ' ';
    if (c1) c = '\xBF';  // With the C2 before it, an inverted question mark.
  }
  return text;
}

std::string signal_text(const Failure& failure) {
  const char* abbreviation = ::sigabbrev_np(*failure.signal);
  return fmt::format("was killed by signal {} (SIG{}){}", *failure.signal,
                     abbreviation ? abbreviation : "?",
                     failure.oom.value_or(false) ? ", out of memory," : "");
}

std::string cause(const Failure& failure) {
  // What an exception that nobody caught ends with is SIGABRT.
  const bool another_signal = failure.signal && failure.signal != SIGABRT;
  if (!failure.what.empty())
    return fmt::format("{} an exception: {}",
                       another_signal ? signal_text(failure) + " after" : "ended with",
                       one_line(failure.what));
  if (failure.signal) return signal_text(failure);
  if (failure.exit_code)
    return fmt::format("exited with code {} without destroy_process_group()", *failure.exit_code);
  if (failure.left) return "left the job without destroy_process_group()";
  if (!failure.connection.empty()) return fmt::format("was lost: {}", one_line(failure.connection));
  return "died of an unknown cause";
}

}  // namespace

std::string_view name(Fault fault) {
  switch (fault) {
    case Fault::misuse:
      return "misuse";
    case Fault::mismatch:
      return "mismatch";
    case Fault::unsupported:
      return "unsupported";
    case Fault::timeout:
      return "timeout";
    case Fault::peer_lost:
      return "peer_lost";
    case Fault::aborted:
      return "aborted";
    case Fault::corrupt:
      return "corrupt";
    case Fault::system:
      return "system";
    case Fault::bug:
      return "bug";
  }
  return "unknown";
}

std::string describe(const Failure& failure) {
  std::string text = fmt::format("rank {} (pid {} on {}) {}", failure.rank, failure.pid,
                                 failure.host, cause(failure));
  if (!failure.operation.empty())
    text += fmt::format(", last seen in {} #{}", failure.operation, failure.sequence);
  return text;
}

Error::Error(Fault fault, std::string_view message, std::source_location where)
    : std::runtime_error(compose(fault, message, where)), fault_(fault) {}

Error::Error(std::string_view context, Failure failure, std::source_location where)
    : std::runtime_error(
          compose(Fault::peer_lost, fmt::format("{}: {}", context, describe(failure)), where)),
      fault_(Fault::peer_lost),
      failure_(std::move(failure)) {}

void require(bool ok, std::string_view message, std::source_location where) {
  if (!ok) throw Error(Fault::misuse, message, where);
}

void check(bool ok, std::string_view message, std::source_location where) {
  if (!ok) throw Error(Fault::bug, message, where);
}

void throw_errno(std::string_view what, std::source_location where) {
  throw_errno(what, errno, where);
}

void throw_errno(std::string_view what, int error_number, std::source_location where) {
  throw Error(Fault::system,
              fmt::format("{}: {}", what, std::generic_category().message(error_number)), where);
}

}  // namespace lockstep
