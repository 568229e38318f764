// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/blame.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "lockstep/base/bare_text.h"
#include "lockstep/base/ranges.h"

namespace lockstep {
namespace {

constexpr std::string_view by = "rank ";
constexpr std::string_view of = " of ";

// Takes the number, or the text, with which `text` begins.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

// What as_ranges() makes. Empty when that is not what `text` begins with.
std::vector<int> take_ranges(std::string_view& text) {
  constexpr int most = 1 << 16;  // A rank of another host has said it.
  std::vector<int> numbers;
  do {
    const auto first = take_number(text);
    const auto last = first && take(text, "-") ? take_number(text) : first;
    if (!last || *last - *first >= most) return {};
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
  } while (take(text, ","));
  return numbers;
}

std::string_view word_for(Fault fault) {
  return fault == Fault::timeout ? " (waits for " : " (differ: ";
}

// What reason_for() has made.
struct Reason {
  int rank;  // Whose it is.
  std::vector<int> ranks;
  std::string_view text;
};

std::optional<Reason> parse(std::string_view reason, Fault fault) {
  if (!take(reason, by)) return std::nullopt;
  const auto rank = take_number(reason);
  if (!rank || !take(reason, word_for(fault))) return std::nullopt;
  std::vector<int> ranks = take_ranges(reason);
  if (ranks.empty() || !take(reason, "): ")) return std::nullopt;
  return Reason{*rank, std::move(ranks), reason};
}

// Of an Error that only passes on another rank's.
void take_from_reason(Failure& failure) {
  const std::string text = failure.what;
  const auto begin = text.find(was_given_up);
  if (begin == text.npos) return;
  const std::string_view given = std::string_view(text).substr(begin + was_given_up.size());
  auto reason = parse(given, *failure.fault);
  if (!reason) return;
  failure.detected_by = reason->rank;
  failure.ranks = std::move(reason->ranks);
  if (failure.fault == Fault::timeout) {
    failure.what = fmt::format("in time; {}", given);
    return;
  }
  const std::string place = fmt::format(" on rank {}: ", reason->rank);
  const auto context = reason->text.find(place);
  failure.what = context == text.npos ? reason->text : reason->text.substr(context + place.size());
}

}  // namespace

bool blames_the_living(const Error& error) {
  return error.fault() == Fault::timeout || error.fault() == Fault::mismatch;
}

std::string reason_for(const Error& error, int rank) {
  std::string who = fmt::format("{}{}", by, rank);
  if (blames_the_living(error) && !error.ranks().empty())
    who += fmt::format("{}{})", word_for(error.fault()), as_ranges(error.ranks()));
  return fmt::format("{}: {}", who, bare_text(error));
}

Failure blame_in(const Error& error, int rank, const std::string& context,
                 std::chrono::milliseconds timeout) {
  Failure failure{.detected_by = rank, .fault = error.fault(), .ranks = error.ranks()};
  failure.call = context.substr(0, context.rfind(" on rank "));
  failure.what = bare_text(error);
  if (failure.what.starts_with(context + ": ")) failure.what.erase(0, context.size() + 2);
  if (failure.ranks.empty())
    take_from_reason(failure);
  else if (failure.fault == Fault::timeout)
    failure.what = fmt::format("within {:g} s; rank {} waited",
                               std::chrono::duration<double>(timeout).count(), rank);
  if (!failure.ranks.empty()) failure.rank = failure.ranks.front();
  return failure;
}

std::string in_words(const Failure& failure) {
  return fmt::format("{}{}{}, {}{}{}{}): {}", name(*failure.fault), of, failure.call, by,
                     failure.detected_by, word_for(*failure.fault), as_ranges(failure.ranks),
                     failure.what);
}

bool read_words(std::string_view text, Failure& failure) {
  for (const Fault fault : {Fault::timeout, Fault::mismatch}) {
    std::string_view rest = text;
    if (!take(rest, name(fault)) || !take(rest, of)) continue;
    const auto end = rest.find(fmt::format(", {}", by));
    if (end == rest.npos) return false;
    auto reason = parse(rest.substr(end + 2), fault);
    if (!reason) return false;
    failure.fault = fault;
    failure.call = rest.substr(0, end);
    failure.ranks = std::move(reason->ranks);
    failure.what = reason->text;
    return true;
  }
  return false;
}

}  // namespace lockstep
