// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string_view>
#include <typeinfo>

#include "lockstep/base/message_parts.h"
#include "lockstep/base/signal_names.h"

namespace lockstep {
namespace {

unsigned char byte_of(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// Bytes of the first character; 0 if it is not UTF-8. The second byte's limits (Unicode standard,
// table 3-7) exclude overlong forms and surrogates.
std::size_t bytes_of_character(std::string_view text) {
  const unsigned char first = byte_of(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < size) return 0;
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte_of(text, 1) < least || byte_of(text, 1) > most) return 0;
  for (std::size_t i = 2; i < size; ++i)
    if ((byte_of(text, i) & 0xC0) != 0x80) return 0;
  return size;
}

std::string_view shown(std::string_view character, bool is_utf8) {
  if (!is_utf8) return "\xEF\xBF\xBD";
  const unsigned char first = byte_of(character, 0);
  if (first < 0x20 || first == 0x7F) return " ";
  if (first == 0xC2 && byte_of(character, 1) < 0xA0) return "\xC2\xBF";
  return character;
}

constexpr std::size_t most_text = 8192;

// Exceptions of LibTorch end with a C++ backtrace (c10/util/Exception.cpp).
std::string_view without_backtrace(std::string_view text) {
  return text.substr(0, text.find("\nException raised from "));
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, Free> text(abi::__cxa_demangle(name, nullptr, nullptr, &status));
  return text ? text.get() : name;
}

// backtrace_symbols() writes "program(mangled+0x12) [0x55]".
std::string readable(std::string_view frame) {
  const auto open = frame.find('(');
  const auto plus = frame.find('+', open);
  if (open == frame.npos || plus == frame.npos || plus == open + 1) return std::string(frame);
  const std::string symbol(frame.substr(open + 1, plus - open - 1));
  return std::string(frame.substr(0, open + 1)) + demangled(symbol.c_str()) +
         std::string(frame.substr(plus));
}

// Percent-encodes bytes that are not text and characters that could end a value.
std::string escaped(std::string_view text) {
  if (text.empty()) return "-";
  std::string value;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("-._:@/+#()", c) != nullptr)
      value += c;
    else
      value += fmt::format("%{:02X}", byte);
  }
  return value;
}

std::string cause_value(const Failure& failure) {
  if (failure.fault) return std::string(name(*failure.fault));
  const bool threw = !failure.what.empty();
  if (threw && (failure.signal == SIGABRT || (!failure.signal && !failure.exit_code)))
    return "exception";
  if (failure.signal)
    return escaped(fmt::format("signal:{}({})", *failure.signal, signal_name(*failure.signal)));
  if (failure.exit_code) {
    const std::string signal = signal_of_exit_code(*failure.exit_code);
    return fmt::format("exit:{}{}", *failure.exit_code,
                       signal.empty() ? "" : fmt::format("({})", signal));
  }
  return failure.left ? "left" : "unknown";
}

// The OOM killer only uses SIGKILL.
std::string_view oom_value(const Failure& failure) {
  if (failure.oom) return *failure.oom ? "yes" : "no";
  const bool known =
      failure.signal || failure.exit_code || failure.left || failure.fault || !failure.what.empty();
  return known && failure.signal != SIGKILL ? "no" : "unknown";
}

// "1+3"; "-" for other failures.
std::string ranks_of(Fault fault, const Failure& failure) {
  if (failure.fault != fault) return "-";
  return failure.ranks.empty() ? "-" : fmt::format("{}", fmt::join(failure.ranks, "+"));
}

}  // namespace

std::string_view cut_text(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (byte_of(text, most) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

std::string clean_text(std::string_view text, std::size_t most) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t bytes = bytes_of_character(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    const std::string_view visible = shown(character, bytes != 0);
    if (visible.size() > most - clean.size()) break;
    clean += visible;
    text.remove_prefix(character.size());
  }
  return clean;
}

std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] - 1 == numbers[last]) ++last;
    if (!text.empty()) text += ',';
    text += last == first ? fmt::format("{}", numbers[first])
                          : fmt::format("{}-{}", numbers[first], numbers[last]);
    first = last + 1;
  }
  return text;
}

std::string other_end(std::string_view operation, int peer) {
  return fmt::format("{} {}", operation == "send" ? "to" : "from",
                     peer < 0 ? "any rank" : fmt::format("rank {}", peer));
}

std::string name_of_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", as_ranges(ranks));
}

std::vector<int> ranks_within(std::vector<int> ranks, int size) {
  std::erase_if(ranks, [size](int rank) { return rank < 0 || rank >= size; });
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string bare_text(const Error& error) {
  std::string text = error.what();
  const std::string fault = fmt::format("{}: ", name(error.fault()));
  if (text.starts_with(fault)) text.erase(0, fault.size());
  if (text.ends_with(']')) text.erase(std::min(text.rfind(" ["), text.size()));
  return text;
}

std::string exception_text(const std::exception_ptr& error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    text = demangled(typeid(Error).name()) + ": " + known.what();
  } catch (const std::exception& known) {
    text = fmt::format("{}: {}", demangled(typeid(known).name()), without_backtrace(known.what()));
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    text = type != nullptr ? demangled(type->name()) : "an exception of another language";
  }
  if (text.size() > most_text) text.resize(most_text);
  return text;
}

bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.failure() || known.fault() == Fault::aborted;
  } catch (...) {
    return false;
  }
}

std::optional<Fault> fault_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.fault();
  } catch (...) {
    return std::nullopt;
  }
}

std::optional<LineDifference> differing_line(const std::vector<std::string>& texts) {
  const auto read = [](std::istringstream& lines, std::string& line) {
    if (!std::getline(lines, line)) line = "nothing more";
  };
  for (std::size_t i = 1; i < texts.size(); ++i) {
    if (texts[i] == texts[0]) continue;
    std::istringstream first(texts[0]);
    std::istringstream other(texts[i]);
    for (LineDifference found{.text = i};; ++found.line) {
      read(first, found.first);
      read(other, found.other);
      if (found.first != found.other || (!first && !other)) return found;
    }
  }
  return std::nullopt;
}

std::string call_stack(int skip) {
  std::array<void*, 64> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  const std::unique_ptr<char*, Free> symbols(::backtrace_symbols(frames.data(), count));
  std::string text;
  if (!symbols) return text;
  for (int i = skip + 1; i < count; ++i) text += "  " + readable(symbols.get()[i]) + '\n';
  return text;
}

std::string failure_record(std::string_view job_id, const Failure& failure,
                           std::chrono::milliseconds after) {
  return fmt::format(
      "lockstep-fail job={} rank={} host={} pid={} cause={} oom={} op={} seq={} group={} "
      "detected_by={} after_ms={} waits_for={} differ={} call={} called={}",
      escaped(job_id), failure.rank, escaped(failure.host), failure.pid, cause_value(failure),
      oom_value(failure), escaped(failure.operation), failure.sequence, escaped(failure.group),
      failure.detected_by < 0 ? "launcher" : fmt::to_string(failure.detected_by), after.count(),
      ranks_of(Fault::timeout, failure), ranks_of(Fault::mismatch, failure), escaped(failure.call),
      escaped(failure.fault == Fault::mismatch ? parts_of(failure.what).what : ""));
}

}  // namespace lockstep
