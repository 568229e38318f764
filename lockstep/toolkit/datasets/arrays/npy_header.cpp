// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/arrays/npy_header.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/file_format.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {
namespace {

constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr std::size_t most_npy_text = 10'000;  // NumPy's own limit, max_header_size.
constexpr std::size_t most_npy_dimensions = 64;

// Parses NumPy's dict, keys in any order.
class NpyText {
 public:
  // `begin`: offset of `text` in the file.
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
                  at_ < text_.size() ? in_quotes(text_.substr(at_), 20) : "the end of the header");
  }

  [[noreturn]] void cannot_read(const std::string& what) const {
    throw Error(Fault::unsupported, std::string(file_) + ": " + what);
  }

  void skip_spaces() {
    while (at_ < text_.size() && std::string_view(" \n\r\t").find(text_[at_]) != std::string::npos)
      ++at_;
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
    // As in Python 2.
    if (at_ + 1 < text_.size() && (text_[at_] == 'u' || text_[at_] == 'b')) ++at_;
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
      header_.fortran_order = accept_word("True");
      if (!header_.fortran_order && !accept_word("False")) refuse("True or False");
    } else if (key == "shape") {
      require_first(*this, has_shape_);
      read_shape();
    } else {
      refuse("descr, fortran_order or shape as the key before");
    }
  }

  void read_type() {
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '{' || text_[at_] == '('))
      cannot_read("the array has named fields: save each field as an array of its own");
    const std::string_view type = read_string();
    const std::string shown = "values of type " + in_quotes(type, 40);
    const bool has_order = !type.empty() && std::string_view("<>|=").find(type[0]) != type.npos;
    const std::string_view name = type.substr(has_order ? 1 : 0);
    if (name.starts_with('O') || name == "object")
      cannot_read(shown + " are Python objects, which only pickle can read: save numbers");
    if (!set_kind_and_width(name, has_order))
      cannot_read("the array has " + shown + ", which tensors do not have" + remedy_of(name));
    if (has_order && type[0] == '>' && header_.width > 1)
      cannot_read(shown + " are big-endian: save x.astype(x.dtype.newbyteorder('<'))");
  }

  static std::string remedy_of(std::string_view name) {
    if (name.starts_with('M') || name.starts_with('m') || name.starts_with("datetime") ||
        name.starts_with("timedelta"))
      return ": dates and times may be saved as x.astype('int64')";
    if (name.starts_with('f') || name.starts_with('c') || name.starts_with("longdouble"))
      return ": save x.astype('float64')";
    return ": save numbers";
  }

  // Returns false for a type that tensors lack.
  bool set_kind_and_width(std::string_view name, bool has_order) {
    struct Other {
      std::string_view name;
      char kind;
      std::uint64_t width;
    };
    // NumPy's type letters on Linux, and type names, which have no byte order.
    constexpr Other letters[]{{"?", 'b', 1}, {"b", 'i', 1}, {"B", 'u', 1}, {"h", 'i', 2},
                              {"H", 'u', 2}, {"i", 'i', 4}, {"I", 'u', 4}, {"l", 'i', 8},
                              {"L", 'u', 8}, {"q", 'i', 8}, {"Q", 'u', 8}, {"e", 'f', 2},
                              {"f", 'f', 4}, {"d", 'f', 8}, {"F", 'c', 8}, {"D", 'c', 16}};
    constexpr Other names[]{{"bool", 'b', 1},    {"int8", 'i', 1},      {"int16", 'i', 2},
                            {"int32", 'i', 4},   {"int64", 'i', 8},     {"uint8", 'u', 1},
                            {"uint16", 'u', 2},  {"uint32", 'u', 4},    {"uint64", 'u', 8},
                            {"float16", 'f', 2}, {"float32", 'f', 4},   {"float64", 'f', 8},
                            {"float", 'f', 8},   {"complex64", 'c', 8}, {"complex128", 'c', 16}};
    const auto take = [&](std::span<const Other> others) {
      const auto found = std::ranges::find(others, name, &Other::name);
      if (found == others.end()) return false;
      header_.kind = found->kind;
      header_.width = found->width;
      return true;
    };
    if (take(letters) || (!has_order && take(names))) return true;
    if (name.empty()) return false;
    header_.kind = name[0];
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + 1, end, header_.width);
    return error == std::errc() && stop == end && is_known_type();
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
      // (3,) is one dimension, (3) would be a number.
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
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;
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
  if (!bytes.starts_with(npy_magic)) {
    const auto format = file_format_of(std::as_bytes(std::span(bytes)));
    throw_corrupt(file, 0, "\\x93NUMPY, of a .npy file",
                  format ? describe(*format) : "another format");
  }
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

bool is_npy(std::span<const std::byte> bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
      .starts_with(npy_magic);
}

NpyHeader parse_npy_header(std::string_view file, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const NpyTextPlace place = find_npy_text(file, text);
  NpyHeader header = NpyText(file, text.substr(place.begin, place.length), place.begin).read();
  header.begin = place.begin + place.length;
  // Dimensions beside a 0 must be possible, too: strides are their products.
  std::uint64_t size = header.width;
  for (const std::int64_t dimension : header.shape)
    if (__builtin_mul_overflow(size, std::max<std::uint64_t>(dimension, 1), &size) ||
        size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      throw_corrupt(file, place.begin, "a shape that fits the file's size", "a larger one");
  if (std::ranges::find(header.shape, 0) != header.shape.end()) size = 0;
  header.values = size / header.width;
  const std::uint64_t capacity = bytes.size() - header.begin;
  if (size != capacity)
    throw_corrupt(file, header.begin, std::to_string(size) + " bytes of values for the shape",
                  std::to_string(capacity));
  return header;
}

}  // namespace lockstep::datasets
