// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/strict_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

struct TypeFacts {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<TypeFacts, 20> type_facts{
    {{"another type", 1}, {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1},
     {"F8_E4M3", 1},      {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},
     {"U16", 2},          {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},
     {"F32", 4},          {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8}}};

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::size_t header_alignment = 8;

SafetensorsType find_type(std::string_view name) {
  const auto found = std::ranges::find(type_facts, name, &TypeFacts::name);
  return found == type_facts.end() ? SafetensorsType::OTHER
                                   : static_cast<SafetensorsType>(found - type_facts.begin());
}

template <class Number>
std::string joined(std::span<const Number> numbers, std::string_view separator) {
  std::string text;
  for (const Number number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

// Empty if it exceeds 63 bits. A dimension of 0 must not hide an overflow in others.
std::optional<std::uint64_t> bytes_of(const SafetensorsEntry& entry) {
  bool empty = false;
  std::int64_t product = static_cast<std::int64_t>(size_of(entry.type));
  for (const std::int64_t dimension : entry.shape) {
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(dimension, 1), &product))
      return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

// Accepts only this form of a header:
//   {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//    "__metadata__": {"KEY": "VALUE", ...}}
class HeaderReader final : public checkpoint::StrictJson {
 public:
  explicit HeaderReader(std::string_view file) : checkpoint::StrictJson(file, " of the header") {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::file) return go(Place::top);
    if (place_ != Place::top) fail("unexpected object");
    if (key_ == metadata_key) return go(Place::metadata);
    entry_ = {};
    entry_.name = key_;
    fields_.clear();
    return go(Place::entry);
  }

  bool key(std::string& text) override {
    key_ = std::move(text);
    if (place_ == Place::top && !names_.insert(key_).second) fail("the name occurs twice");
    if (place_ == Place::metadata && header_.metadata.contains(key_))
      fail("the key " + shown(key_) + " occurs twice");
    if (place_ == Place::entry && std::ranges::count(fields_, key_) != 0)
      fail(shown(key_) + " occurs twice");
    if (place_ == Place::entry) fields_.push_back(key_);
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) return header_.metadata.emplace(key_, std::move(text)).second;
    if (place_ != Place::entry || key_ != "dtype") fail("unexpected string");
    entry_.type = find_type(text);
    if (entry_.type == SafetensorsType::OTHER) entry_.other_type = std::move(text);
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::entry && key_ == "shape") return go(Place::shape);
    if (place_ == Place::entry && key_ == "data_offsets") return go(Place::offsets);
    fail("unexpected array");
  }

  bool number_unsigned(std::uint64_t value) override {
    const auto number = small(value);
    if (place_ == Place::shape) {
      entry_.shape.push_back(number);
    } else if (place_ == Place::offsets && offsets_ < 2) {
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
    } else {
      refuse_number(std::to_string(value));
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && std::exchange(offsets_, 0) != 2)
      fail("data_offsets are not two numbers");
    return go(Place::entry);
  }

  bool end_object() override {
    if (place_ == Place::top) return go(Place::file);
    if (place_ == Place::entry) {
      if (fields_.size() != 3) fail("it needs dtype, shape and data_offsets");
      header_.entries.push_back(std::move(entry_));
    }
    return go(Place::top);
  }

  bool number_integer(std::int64_t value) override {
    fail("the number " + std::to_string(value) + " is negative");
  }
  bool number_float(double, const std::string& text) override {
    fail("the number " + shown(text) + " is not a whole one that fits 64 bits");
  }

 private:
  enum class Place { file, top, metadata, entry, shape, offsets };

  bool go(Place place) {
    place_ = place;
    return true;
  }

  std::string context() const override {
    if (place_ == Place::metadata) return std::string(metadata_key) + ": ";
    if (place_ == Place::top) return shown(key_) + ": ";
    return place_ == Place::file ? "" : "tensor " + shown(entry_.name) + ": ";
  }

  Place place_ = Place::file;
  std::string key_;
  std::vector<std::string> fields_;
  int offsets_ = 0;  // Read for the current entry.
  SafetensorsEntry entry_;
  std::unordered_set<std::string> names_;
  SafetensorsHeader header_;
};

void check_coverage(std::string_view file, const std::vector<SafetensorsEntry>& entries,
                    std::uint64_t data_size) {
  const auto fail = [&](const SafetensorsEntry& entry, const std::string& what) {
    throw Error(Fault::corrupt, std::string(file) + ": tensor " + shown(entry.name) + ": " + what);
  };
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const bool has_size = entry.type != SafetensorsType::OTHER;
    const auto size = has_size ? bytes_of(entry) : entry.end - entry.begin;
    if (!size) fail(entry, describe(entry) + " is larger than any file");
    if (entry.end < entry.begin || entry.end - entry.begin != *size)
      fail(entry, describe(entry) + " takes " + std::to_string(*size) + " bytes, but lies from " +
                      std::to_string(entry.begin) + " to " + std::to_string(entry.end));
    if (entry.begin != end)
      fail(entry, "expected its data at byte " + std::to_string(end) + ", found it at " +
                      std::to_string(entry.begin));
    if (entry.end > data_size)
      fail(entry, "expected its data to end by byte " + std::to_string(data_size) +
                      ", where the file ends, found " + std::to_string(entry.end));
    end = entry.end;
  }
  if (end != data_size)
    throw Error(Fault::corrupt, std::string(file) + ": expected " + std::to_string(end) +
                                    " bytes of data, found " + std::to_string(data_size));
}

std::string as_json(const std::string& text) { return checkpoint::json_text("safetensors", text); }

std::string as_json(const SafetensorsEntry& entry) {
  const std::array<std::uint64_t, 2> offsets{entry.begin, entry.end};
  std::string text = as_json(entry.name);
  text += R"(:{"dtype":")";
  text += name(entry.type);
  text += R"(","shape":[)" + joined<std::int64_t>(entry.shape, ",");
  text += R"(],"data_offsets":[)" + joined<std::uint64_t>(offsets, ",") + "]}";
  return text;
}

void append_member(std::string& json, const std::string& member) {
  if (json.back() != '{') json += ',';
  json += member;
}

}  // namespace

std::string_view name(SafetensorsType type) {
  return type_facts.at(static_cast<std::size_t>(type)).name;
}

std::size_t size_of(SafetensorsType type) {
  return type_facts.at(static_cast<std::size_t>(type)).size;
}

std::string describe(const SafetensorsEntry& entry) {
  constexpr std::size_t most = 16;
  std::string text(entry.type == SafetensorsType::OTHER ? shown(entry.other_type)
                                                        : name(entry.type));
  text +=
      " [" +
      joined(std::span<const std::int64_t>(entry.shape).first(std::min(most, entry.shape.size())),
             ", ");
  return text + (entry.shape.size() > most ? ", ...]" : "]");
}

std::string shown(std::string_view name) {
  constexpr std::size_t most = 100;
  const std::string part(name.substr(0, most));
  return Json(part).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) +
         (name.size() > most ? "..." : "");
}

SafetensorsHeader parse_safetensors_header(std::string_view file, std::string_view json,
                                           std::uint64_t data_size) {
  if (json.empty() || json.front() != '{')
    throw Error(Fault::corrupt, std::string(file) + ": byte 8: expected '{', found " +
                                    (json.empty() ? "no header" : shown(json.substr(0, 1))));
  HeaderReader reader(file);
  reader.read(json);
  SafetensorsHeader header = reader.take();
  std::ranges::stable_sort(header.entries, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.begin, entry.end);
  });
  check_coverage(file, header.entries, data_size);
  return header;
}

void lay_out(SafetensorsHeader& header) {
  auto& entries = header.entries;
  std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(b.type, a.name) < std::tie(a.type, b.name);
  });
  std::unordered_set<std::string_view> names{metadata_key};
  std::uint64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    require(entry.type != SafetensorsType::OTHER,
            [&] { return "safetensors: " + describe(entry) + " cannot be written"; });
    require(names.insert(entry.name).second, [&] {
      return "safetensors: the name " + shown(entry.name) + " occurs twice or is reserved";
    });
    const auto size = bytes_of(entry);
    require(size.has_value(),
            [&] { return "safetensors: " + describe(entry) + " is larger than any file"; });
    entry.begin = end;
    end += *size;
    entry.end = end;
  }
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::string json = "{";
  if (!header.metadata.empty()) {
    json += as_json(std::string(metadata_key)) + ":{";
    for (const auto& [key, value] : header.metadata)
      append_member(json, as_json(key) + ":" + as_json(value));
    json += '}';
  }
  for (const SafetensorsEntry& entry : header.entries) append_member(json, as_json(entry));
  json += '}';
  json.append((header_alignment - json.size() % header_alignment) % header_alignment, ' ');
  require(json.size() <= safetensors_header_limit, [&] {
    return "safetensors: the header would take " + std::to_string(json.size()) + " bytes";
  });

  std::string length;
  for (int shift = 0; shift < 64; shift += 8) length += static_cast<char>(json.size() >> shift);
  return length + json;
}

}  // namespace lockstep
