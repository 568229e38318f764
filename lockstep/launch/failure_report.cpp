// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/failure_report.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/signal_names.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t compared_text = 1000;

bool has_ended(const Failure& failure) {
  return !failure.fault && !failure.what.empty() && (failure.exit_code || failure.signal);
}

constexpr std::string_view before_places = "; last seen: ";

// The fault in an Error's exception_text(); empty for other exceptions.
std::optional<Fault> fault_in_text(std::string_view what) {
  constexpr std::string_view type = "lockstep::Error: ";
  if (!what.starts_with(type)) return std::nullopt;
  what.remove_prefix(type.size());
  return fault_named(what.substr(0, what.find(':')));
}

std::string remedy_for_signal(const Failure& failure) {
  if (failure.signal == SIGKILL && failure.oom.value_or(false))
    return "use less memory: smaller batches, fewer ranks on this host, or share_parameters";
  if (failure.signal == SIGKILL || failure.signal == SIGTERM || failure.signal == SIGINT ||
      failure.signal == SIGHUP)
    return fmt::format("find out who sent {}: a user, a scheduler, or a limit of memory or time",
                       signal_name(*failure.signal));
  return fmt::format("run rank {} in a debugger, or read its core dump (ulimit -c unlimited)",
                     failure.rank);
}

struct SystemRemedy {
  int error_number;
  const char* remedy;
};
constexpr SystemRemedy system_remedies[] = {
    {ENOENT, "correct the path, or create what is missing there"},
    {ENOSPC, "free space on that file system, or choose another folder"},
    {EDQUOT, "free space in this user's quota, or choose another folder"},
    {EROFS, "choose a folder on a file system that is mounted for writing"},
    {EACCES, "give this user access to the path, or choose another one"},
    {EPERM, "give this user the permission, or choose another path"},
    {EMFILE, "raise the limit of open files (ulimit -n)"},
    {ENOMEM, "use less memory: smaller batches, or fewer ranks on this host"}};

std::string remedy_for_system(std::string_view what) {
  for (const SystemRemedy& each : system_remedies)
    if (what.find(std::generic_category().message(each.error_number)) != what.npos)
      return each.remedy;
  return "correct the path, or provide what the operating system refused, such as space";
}

std::string remedy_for_fault(Fault fault, std::string_view what) {
  switch (fault) {
    case Fault::misuse:
      return "correct the call or the setting that the message names";
    case Fault::mismatch:
      return "make the same calls in the same order on all ranks, with equal types and sizes";
    case Fault::unsupported:
      return "choose a setting or an engine that supports it";
    case Fault::timeout:
      return "find out why they are late: lockstep status shows it live; or set a longer timeout";
    case Fault::peer_lost:
    case Fault::aborted:
      return "read the output of the ranks above, then start the job again";
    case Fault::corrupt:
      return "use another file or checkpoint than the damaged one";
    case Fault::system:
      return remedy_for_system(what);
    case Fault::bug:
      return "report it, with this message, as a bug of Lockstep";
  }
  return "report it";
}

std::string remedy_for(const Failure& failure) {
  if (failure.fault) return remedy_for_fault(*failure.fault, failure.what);
  if (!failure.what.empty()) {
    if (const auto fault = fault_in_text(failure.what))
      return remedy_for_fault(*fault, failure.what);
    return "correct what the exception describes; the output above may show more";
  }
  if (failure.signal) return remedy_for_signal(failure);
  if (failure.left) return "call destroy_process_group() on all ranks, after their last call";
  return fmt::format("read the output of rank {} above: it ended without an exception",
                     failure.rank);
}

std::string place_of(const Failure& failure) {
  return fmt::format("rank {} (pid {} on {})", failure.rank, failure.pid, failure.host);
}

std::string how_it_ended(const Failure& failure, bool attached) {
  if (attached || !failure.exit_code) return describe_end(failure);
  return fmt::format("{}{}{}", describe_exit_code(*failure.exit_code),
                     failure.what.empty() ? "" : ": ", failure.what);
}

MessageParts parts_of_break(const Failure& failure) {
  MessageParts parts = parts_of(describe(failure));
  if (const auto at = parts.what.find(before_places); at != parts.what.npos) {
    parts.who = parts.what.substr(at + before_places.size());
    parts.what.resize(at);
  }
  if (parts.who.empty())
    parts.who = failure.ranks.empty() ? "unknown ranks" : name_of_ranks(failure.ranks);
  return parts;
}

MessageParts parts_of_end(const Failure& failure, bool attached) {
  const MessageParts own = parts_of(failure.what);
  Failure bare = failure;
  bare.what = own.what;
  MessageParts parts{.who = own.who, .to_do = own.to_do};
  if (is_common(failure)) {
    const std::string ranks = name_of_ranks(failure.ranks);
    parts.what = fmt::format("{} ended with the same exception: {}", ranks, own.what);
    if (parts.who.empty()) parts.who = ranks;
  } else {
    parts.what = fmt::format("rank {} {}", failure.rank, how_it_ended(bare, attached));
    if (parts.who.empty()) parts.who = place_of(failure) + describe_last_call(failure);
  }
  return parts;
}

}  // namespace

MessageParts report_of(const Failure& failure, bool attached) {
  MessageParts parts = failure.fault ? parts_of_break(failure) : parts_of_end(failure, attached);
  if (parts.to_do.empty()) parts.to_do = remedy_for(failure);
  // A rank's text is untrusted.
  return {clean_text(parts.what), clean_text(parts.who), clean_text(parts.to_do)};
}

bool is_common(const Failure& failure) { return has_ended(failure) && failure.ranks.size() > 1; }

bool ended_alike(const Failure& one, const Failure& other) {
  return has_ended(one) && has_ended(other) &&
         clean_text(one.what, compared_text) == clean_text(other.what, compared_text);
}

void add_alike(Failure& failure, const Failure& other) {
  if (!ended_alike(failure, other)) return;
  std::set<int> ranks(failure.ranks.begin(), failure.ranks.end());
  ranks.insert(other.ranks.begin(), other.ranks.end());
  ranks.insert({failure.rank, other.rank});
  failure.ranks.assign(ranks.begin(), ranks.end());
}

}  // namespace lockstep::launch
