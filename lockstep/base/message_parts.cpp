// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/message_parts.h"

#include <fmt/format.h>

#include <csignal>

#include "lockstep/base/signal_names.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view before_who = "; caused by ";
constexpr std::string_view before_to_do = "; to do: ";

// Returns, and removes, `separator` and the text after it.
std::string_view cut_after(std::string_view& text, std::string_view separator) {
  const auto at = text.find(separator);
  if (at == text.npos) return {};
  const std::string_view rest = text.substr(at + separator.size());
  text = text.substr(0, at);
  return rest;
}

// " [lockstep/comm/x.cpp:12]", or nothing.
std::string_view place_at_end(std::string_view text) {
  if (!text.ends_with(']')) return {};
  const auto at = text.rfind(" [");
  const auto colon = text.rfind(':');
  if (at == text.npos || colon == text.npos || colon < at || colon + 2 > text.size() - 1) return {};
  const std::string_view line = text.substr(colon + 1, text.size() - colon - 2);
  const bool is_number = line.find_first_not_of("0123456789") == line.npos;
  return is_number ? text.substr(at) : std::string_view();
}

std::string signal_text(const Failure& failure) {
  return fmt::format("was killed by signal {} ({}{})", *failure.signal,
                     signal_name(*failure.signal),
                     failure.oom.value_or(false) ? ", out of memory" : "");
}

// The message continues after `text`.
std::string_view without_end(std::string_view text) {
  const auto last = text.find_last_not_of(" \n\r\t.,;:");
  return last == text.npos ? text : text.substr(0, last + 1);
}

}  // namespace

MessageParts parts_of(std::string_view message) {
  const std::string_view place = place_at_end(message);
  message.remove_suffix(place.size());
  const std::string to_do(cut_after(message, before_to_do));
  const std::string who(cut_after(message, before_who));
  return {.what = std::string(message) + std::string(place), .who = who, .to_do = to_do};
}

std::string describe_end(const Failure& failure) {
  // An uncaught exception ends the process with SIGABRT.
  const bool another_signal = failure.signal && failure.signal != SIGABRT;
  if (!failure.what.empty())
    return fmt::format("{} an exception: {}",
                       another_signal ? signal_text(failure) + " after" : "ended with",
                       without_end(failure.what));
  if (failure.signal) return signal_text(failure);
  if (failure.exit_code)
    return describe_exit_code(*failure.exit_code) + " without destroy_process_group()";
  if (failure.left) return "left its group before the others";
  if (!failure.connection.empty())
    return fmt::format("was lost: {}", without_end(failure.connection));
  return "died of an unknown cause";
}

std::string describe_last_call(const Failure& failure) {
  if (failure.operation.empty()) return {};
  std::string text = fmt::format(", last seen in {} #{}", failure.operation, failure.sequence);
  if (failure.peer)
    text +=
        fmt::format(" {} of group {}", other_end(failure.operation, *failure.peer), failure.group);
  return text;
}

}  // namespace lockstep
