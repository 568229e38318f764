// A JSON parser for one form, such as manifest.json. Subclasses reject the first event of
// nlohmann's parser that does not fit. Unlike nlohmann's values, they reject repeated keys and do
// not store everything. Nesting costs one bit of memory per level, and no recursion.
//
// Needs no LibTorch, for fuzzing. Errors: corrupt, with file and position.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {

// Rejects all events that a subclass does not override.
class StrictJson : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Json = nlohmann::json;

  // `file` must outlive this object. `text_name` follows positions in messages, such as " of the
  // header".
  explicit StrictJson(std::string_view file, std::string_view text_name = "")
      : file_(file), text_name_(text_name) {}

  // Rejects a zero byte, where nlohmann's parser stops, and a byte order mark, which it skips.
  void read(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) refuse_syntax(1);
    if (const std::size_t zero = text.find('\0'); zero != text.npos) refuse_syntax(zero + 1);
    check(Json::sax_parse(text, this), "a reader of JSON has stopped without an Error");
  }

  bool start_object(std::size_t) override { fail("unexpected object"); }
  bool start_array(std::size_t) override { fail("unexpected array"); }
  bool string(std::string&) override { fail("unexpected string"); }
  bool number_unsigned(std::uint64_t value) override { refuse_number(std::to_string(value)); }
  bool number_integer(std::int64_t value) override { refuse_number(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { refuse_number(shown(text)); }
  bool boolean(bool) override { fail("unexpected truth value"); }
  bool null() override { fail("unexpected null"); }
  bool binary(Json::binary_t&) override { fail("unexpected binary data"); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    refuse_syntax(position);
  }

 protected:
  // The position, for messages.
  virtual std::string context() const = 0;

  [[noreturn]] void fail(const std::string& what, Fault fault = Fault::corrupt) const {
    throw Error(fault, std::string(file_) + ": " + context() + what);
  }

  [[noreturn]] void refuse_number(const std::string& number) const {
    fail("unexpected number " + number);
  }

  template <class Integer = std::int64_t>
  Integer small(std::uint64_t value) const {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()))
      fail("the number " + std::to_string(value) + " is too large");
    return static_cast<Integer>(value);
  }

 private:
  [[noreturn]] void refuse_syntax(std::size_t position) const {
    throw Error(Fault::corrupt, std::string(file_) + ": byte " + std::to_string(position) +
                                    std::string(text_name_) +
                                    ": it is not JSON in UTF-8 from here on");
  }

  const std::string_view file_;
  const std::string_view text_name_;
};

// Errors: misuse, beginning with `format`, for text that is not UTF-8.
inline std::string json_text(std::string_view format, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(Fault::misuse, std::string(format) + ": " + shown(text) + " is not UTF-8");
  }
}

}  // namespace lockstep::checkpoint
