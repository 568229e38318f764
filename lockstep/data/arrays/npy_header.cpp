// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/arrays/npy_header.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/data/corrupt_file.h"

namespace lockstep::data {
namespace {

constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr std::size_t most_npy_text = 10'000;  // NumPy's own limit, max_header_size.
constexpr std::size_t most_npy_dimensions = 64;

// Reads the text of a header: the dict that NumPy writes, with its keys in any order.
class NpyText {
 public:
  // `begin` is the offset of `text` in the file.
  NpyText(std::string_view file, std::string_view text, std::uint64_t begin)
      : file_(file), text_(text), begin_(begin) {}

  NpyHeader read() {
    expect('{');
    while (!accept('}')) {
      read_entry();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (at_ < text_.size()) refuse("the end of the header");
    if (!has_type_ || !has_order_ || !has_shape_) refuse("descr, fortran_order and shape");
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(std::string_view expected) const {
    throw_corrupt(file_, begin_ + at_, expected,
                  at_ < text_.size() ? quoted(text_.substr(at_), 20) : "the end of the header");
  }

  [[noreturn]] void cannot_read(const std::string& what) const {
    throw Error(Fault::unsupported, std::string(file_) + ": " + what);
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char wanted) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    skip_spaces();
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) refuse(std::string("'") + wanted + "'");
  }

  bool accept_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    skip_spaces();
    return true;
  }

  std::string_view read_string() {
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    const std::size_t end = text_.find(quote, at_ + 1);
    if ((quote != '\'' && quote != '"') || end == text_.npos) refuse("a text in quotes");
    const auto string = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    skip_spaces();
    return string;
  }

  static void require_first(const NpyText& text, bool& seen) {
    if (seen) text.refuse("each key once");
    seen = true;
  }

  void read_entry() {
    const std::string_view key = read_string();
    expect(':');
    if (key == "descr") {
      require_first(*this, has_type_);
      read_type();
    } else if (key == "fortran_order") {
      require_first(*this, has_order_);
      if (accept_word("True"))
        cannot_read("the array is in Fortran order: save numpy.ascontiguousarray(x) in its place");
      if (!accept_word("False")) refuse("True or False");
    } else if (key == "shape") {
      require_first(*this, has_shape_);
      read_shape();
    } else {
      refuse("descr, fortran_order or shape as the key before");
    }
  }

  void read_type() {
    if (at_ < text_.size() && text_[at_] == '[')
      cannot_read("the array has named fields: save each field as an array of its own");
    const std::string_view type = read_string();
    const std::string shown = "values of type " + quoted(type, 20);
    const std::size_t begin = type.find_first_not_of("<>|=");
    if (begin == type.npos || begin > 1 || begin == 0) refuse("a type such as '<f4' before");
    header_.kind = type[begin];
    const std::string_view digits = type.substr(begin + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), header_.width);
    if (header_.kind == 'O')
      cannot_read("the array has Python objects, which only pickle can read: save numbers");
    if (error != std::errc() || end != digits.data() + digits.size() || type[0] == '=')
      refuse("a type such as '<f4' before");
    if (!is_known_type()) cannot_read(shown + " are not ones that tensors have");
    if (type[0] == '>' && header_.width > 1)
      cannot_read(shown + " are big-endian: save x.astype(x.dtype.newbyteorder('<'))");
  }

  bool is_known_type() const {
    const std::uint64_t width = header_.width;
    switch (header_.kind) {
      case 'b':
        return width == 1;
      case 'i':
      case 'u':
        return width == 1 || width == 2 || width == 4 || width == 8;
      case 'f':
        return width == 2 || width == 4 || width == 8;
      case 'c':
        return width == 8 || width == 16;
      default:
        return false;
    }
  }

  void read_shape() {
    expect('(');
    while (!accept(')')) {
      if (header_.shape.size() == most_npy_dimensions) refuse("at most 64 dimensions");
      header_.shape.push_back(read_number());
      if (accept(',')) continue;
      // One dimension is written as (3,): (3) would be a number.
      if (header_.shape.size() == 1) refuse("','");
      expect(')');
      break;
    }
  }

  std::int64_t read_number() {
    std::int64_t number = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (error != std::errc() || number < 0) refuse("a dimension");
    at_ += static_cast<std::size_t>(end - begin);
    skip_spaces();
    return number;
  }

  const std::string_view file_;
  const std::string_view text_;
  const std::uint64_t begin_;
  std::size_t at_ = 0;
  bool has_type_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
  NpyHeader header_;
};

struct NpyTextPlace {
  std::uint64_t begin;
  std::uint64_t length;
};

NpyTextPlace find_npy_text(std::string_view file, std::string_view bytes) {
  if (!bytes.starts_with(npy_magic))
    throw_corrupt(file, 0, "\\x93NUMPY, of a .npy file", "something else");
  const auto byte = [&](std::size_t i) -> std::uint64_t {
    if (i >= bytes.size())
      throw_corrupt(file, bytes.size(), "more of the header", "the end of the file");
    return static_cast<unsigned char>(bytes[i]);
  };
  const std::uint64_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0)
    throw_corrupt(file, 6, "version 1.0, 2.0 or 3.0",
                  std::to_string(major) + "." + std::to_string(minor));
  const std::size_t width = major == 1 ? 2 : 4;
  NpyTextPlace place{8 + width, 0};
  for (std::size_t i = 0; i < width; ++i) place.length |= byte(8 + i) << (8 * i);
  const std::uint64_t most = std::min<std::uint64_t>(most_npy_text, bytes.size() - place.begin);
  if (place.length > most)
    throw_corrupt(file, 8, "at most " + std::to_string(most) + " bytes of text",
                  std::to_string(place.length));
  return place;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view file, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const NpyTextPlace place = find_npy_text(file, text);
  NpyHeader header = NpyText(file, text.substr(place.begin, place.length), place.begin).read();
  header.begin = place.begin + place.length;
  std::uint64_t size = header.width;
  const bool is_empty = std::ranges::count(header.shape, 0) != 0;
  header.values = is_empty ? 0 : 1;
  for (const std::int64_t dimension : header.shape) {
    if (is_empty) break;
    header.values *= static_cast<std::uint64_t>(dimension);
    if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(dimension), &size) ||
        size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      throw_corrupt(file, place.begin, "a shape that fits the file's size", "a larger one");
  }
  const std::uint64_t room = bytes.size() - header.begin;
  if ((is_empty ? 0 : size) != room)
    throw_corrupt(file, header.begin,
                  std::to_string(is_empty ? 0 : size) + " bytes of values, as the shape says",
                  std::to_string(room));
  if (header.begin % std::min<std::uint64_t>(header.width, 8) != 0)
    throw Error(Fault::unsupported, std::string(file) + ": the values begin at byte " +
                                        std::to_string(header.begin) +
                                        ", no multiple of their size: save the array with NumPy");
  return header;
}

}  // namespace lockstep::data
