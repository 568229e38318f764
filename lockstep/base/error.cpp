// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "lockstep/base/message_parts.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

std::string compose(Fault fault, std::string_view message, std::source_location where) {
  const std::string_view path = where.file_name();
  const auto ours = path.rfind("lockstep/");  // Hides the build machine's folders.
  return fmt::format("{}: {} [{}:{}]", name(fault), message,
                     ours == path.npos ? path : path.substr(ours), where.line());
}

std::string describe_break(const Failure& failure) {
  if (failure.fault == Fault::mismatch)
    return fmt::format("ranks disagree in {}: {}", failure.call, failure.what);
  if (failure.ranks.empty()) return fmt::format("{} timed out: {}", failure.call, failure.what);
  return fmt::format("{} did not come to {} {}", name_of_ranks(failure.ranks), failure.call,
                     failure.what);
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

std::optional<Fault> fault_named(std::string_view name) {
  for (const Fault fault :
       {Fault::misuse, Fault::mismatch, Fault::unsupported, Fault::timeout, Fault::peer_lost,
        Fault::aborted, Fault::corrupt, Fault::system, Fault::bug})
    if (lockstep::name(fault) == name) return fault;
  return std::nullopt;
}

// Control characters could move a terminal's cursor.
std::string describe(const Failure& failure) {
  if (failure.fault) return clean_text(describe_break(failure));
  return clean_text(fmt::format("rank {} (pid {} on {}) {}{}", failure.rank, failure.pid,
                                failure.host, describe_end(failure), describe_last_call(failure)));
}

Error::Error(Fault fault, std::string_view message, std::source_location where)
    : std::runtime_error(compose(fault, message, where)), fault_(fault) {}

Error::Error(Fault fault, std::string_view message, std::vector<int> ranks,
             std::source_location where)
    : std::runtime_error(compose(fault, message, where)), fault_(fault), ranks_(std::move(ranks)) {}

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

int exit_code_of(Fault fault) {
  switch (fault) {
    case Fault::misuse:
      return exit_usage;
    case Fault::mismatch:
      return exit_mismatch;
    case Fault::unsupported:
      return exit_unsupported;
    case Fault::timeout:
    case Fault::peer_lost:
    case Fault::aborted:
      return exit_unavailable;
    case Fault::corrupt:
      return exit_corrupt;
    case Fault::system:
      return exit_system;
    case Fault::bug:
      return exit_bug;
  }
  return exit_bug;
}

}  // namespace lockstep
