// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/detail/passed_value.h"

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep::pipeline {
namespace {

template <class T>
std::string text_of(T number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return {text, end};
}

bool is_integer(std::string_view number) {
  return number.find_first_not_of("-0123456789") == std::string_view::npos;
}

template <class T>
T parsed(std::string_view& rest, std::string_view end) {
  T value{};
  const char* const last = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data(), last, value);
  check(error == std::errc(), "the structure of a passed value is damaged");
  rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  check(rest.starts_with(end), "the structure of a passed value is damaged");
  rest.remove_prefix(end.size());
  return value;
}

}  // namespace

void ValueWriter::begin(std::string_view kind, std::size_t size) {
  put(kind);
  put("(");
  put(std::to_string(size));
  put(":");
}

void ValueWriter::write_tensor(const at::Tensor& tensor) {
  put(tensor.defined() ? "tensor" : "undefined");
  if (tensor.defined()) value_.tensors.push_back(tensor);
}

// With its length: texts may contain any characters.
void ValueWriter::write_text(std::string_view text) {
  put("text ");
  put(std::to_string(text.size()));
  put(":");
  put(text);
}

// Whole numbers end with a point, unlike integers.
void ValueWriter::write_number(double number) {
  std::string text = text_of(number);
  if (is_integer(text)) text += '.';
  put("number " + text + ";");
}

void ValueWriter::write_number(std::int64_t number) { put("number " + text_of(number) + ";"); }

void ValueWriter::write_number(std::uint64_t number) { put("number " + text_of(number) + ";"); }

bool ValueReader::accept(std::string_view text) {
  if (!rest_.starts_with(text)) return false;
  rest_.remove_prefix(text.size());
  return true;
}

void ValueReader::expect(std::string_view text) {
  if (!accept(text)) fail(text == ")" ? "fewer parts" : text == "some(" ? "an optional" : text);
}

std::size_t ValueReader::begin(std::string_view kind) {
  expect(kind);
  expect("(");
  return parsed<std::size_t>(rest_, ":");
}

at::Tensor ValueReader::read_tensor() {
  if (accept("undefined")) return {};
  if (!accept("tensor")) fail("a tensor");
  return value_.tensors.at(next_++);
}

std::string ValueReader::read_text() {
  if (!accept("text ")) fail("a text");
  const auto size = parsed<std::size_t>(rest_, ":");
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}

std::variant<std::int64_t, std::uint64_t, double> ValueReader::read_number() {
  if (!accept("number ")) fail("a number");
  const std::string_view text = rest_.substr(0, rest_.find(';'));
  if (!is_integer(text)) return parsed<double>(rest_, ";");
  if (text.starts_with('-')) return parsed<std::int64_t>(rest_, ";");
  return parsed<std::uint64_t>(rest_, ";");
}

void ValueReader::expect_end() const {
  if (!rest_.empty()) fail("less");
}

void ValueReader::fail(std::string_view expected) const {
  std::string words(expected);
  for (const auto& [text, word] : {std::pair{"tuple(", "a tuple"}, std::pair{",", "fewer parts"},
                                   std::pair{"list", "a list"}, std::pair{"map", "a map"}})
    if (expected == text) words = word;
  throw Error(Fault::misuse, "gets " + in_words(value_.structure) + ", but its forward() takes " +
                                 words + " here: " + (rest_.empty() ? "the end" : in_words(rest_)));
}

std::string in_words(std::string_view structure) {
  std::string words;
  for (std::size_t i = 0; i < structure.size(); ++i) {
    const bool before_end = i + 1 < structure.size() && structure[i + 1] == ')';
    if (structure[i] == ',' && (before_end || i + 1 == structure.size())) continue;
    words += structure[i];
    if (structure[i] == ',' || structure[i] == ':') words += ' ';
  }
  return words.size() > 200 ? words.substr(0, 200) + "..." : words;
}

}  // namespace lockstep::pipeline
