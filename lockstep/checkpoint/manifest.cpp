// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/crc32c.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/strict_json.h"

namespace lockstep {
namespace {

constexpr std::string_view format_name = "lockstep checkpoint";
constexpr std::uint64_t format_version = 1;
constexpr std::array<std::string_view, 7> manifest_keys{"format", "version", "step",  "world_size",
                                                        "files",  "values",  "crc32c"};
constexpr std::array<std::string_view, 5> file_keys{"name", "part", "bytes", "header_crc32c",
                                                    "tensors"};
constexpr std::string_view special_key = "double";  // {"double": "inf"}: JSON has no such number.

// A manifest ends with these, and a CRC-32C between them.
constexpr std::string_view before_crc = ",\n  \"crc32c\": \"";
constexpr std::string_view after_crc = "\"\n}\n";
constexpr std::size_t crc_digits = 8;
constexpr std::size_t end_size = before_crc.size() + crc_digits + after_crc.size();

std::uint32_t crc_of(std::string_view text) {
  return lockstep::crc32c(std::as_bytes(std::span<const char>(text)));
}

std::string hex(std::uint32_t value) {
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15];
  return text;
}

std::optional<std::uint32_t> from_hex(std::string_view text) {
  if (text.size() != crc_digits) return std::nullopt;
  std::uint32_t value = 0;
  for (const char digit : text) {
    const std::size_t nibble = std::string_view("0123456789abcdef").find(digit);
    if (nibble == std::string_view::npos) return std::nullopt;
    value = value << 4 | static_cast<std::uint32_t>(nibble);
  }
  return value;
}

bool drop_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool drop_number(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits >= 5 && digits <= 10;
}

// PART-00001-of-00002.safetensors
bool is_file_name(std::string_view name, std::string_view part) {
  return drop_prefix(name, part) && drop_prefix(name, "-") && drop_number(name) &&
         drop_prefix(name, "-of-") && drop_number(name) && name == ".safetensors";
}

// `seen`: tensors of earlier files.
std::optional<std::string> complaint(
    const ManifestFile& file, const Manifest& manifest,
    std::set<std::pair<std::string_view, std::string_view>>& seen) {
  if (!manifest.values.contains(file.part))
    return "the file " + shown(file.name) + " is of the part " + shown(file.part) +
           ", which has no values";
  if (!is_file_name(file.name, file.part))
    return shown(file.name) + " is not a valid file name for the part " + shown(file.part);
  for (const auto& [tensor, crc] : file.tensors)
    if (!seen.emplace(file.part, tensor).second)
      return "the tensor " + shown(tensor) + " is in two files of the part " + shown(file.part);
  return std::nullopt;
}

// Rules beyond the JSON text.
std::optional<std::string> complaint(const Manifest& manifest) {
  if (manifest.step < 0) return "the step " + std::to_string(manifest.step) + " is negative";
  if (manifest.world_size < 1)
    return "the world_size " + std::to_string(manifest.world_size) + " is not positive";
  for (const auto& [part, values] : manifest.values)
    if (!is_part_name(part)) return shown(part) + " is not a valid name for a part";
  std::set<std::string_view> names;
  std::set<std::pair<std::string_view, std::string_view>> tensors;
  for (const ManifestFile& file : manifest.files) {
    if (!names.insert(file.name).second) return "the file " + shown(file.name) + " occurs twice";
    if (const auto found = complaint(file, manifest, tensors)) return found;
  }
  return std::nullopt;
}

// --- Writing ------------------------------------------------------------------------------------

// Each returns JSON. Errors: misuse.
std::string encoded(const std::string& text) { return checkpoint::json_text("manifest", text); }
std::string encoded(bool value) { return value ? "true" : "false"; }
std::string encoded(std::int64_t value) { return std::to_string(value); }

// With a point or exponent, and enough digits for the exact number.
std::string encoded(double value) {
  if (std::isfinite(value)) return nlohmann::json(value).dump();
  const char* name = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return "{\"" + std::string(special_key) + "\": \"" + name + "\"}";
}

std::string encoded(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? ", " : "") + encoded(value);
  return text + "]";
}

std::string encoded(const StateValue& value) {
  return std::visit([](const auto& alternative) { return encoded(alternative); }, value);
}

// Without brackets.
template <class Members, class Line>
std::string lines(const Members& members, const std::string& indent, Line line) {
  std::string text;
  for (const auto& member : members) text += (text.empty() ? "\n" : ",\n") + indent + line(member);
  if (!text.empty()) text += "\n" + indent.substr(2);
  return text;
}

std::string encoded(const ManifestFile& file) {
  return "{\"name\": " + encoded(file.name) + ", \"part\": " + encoded(file.part) +
         ", \"bytes\": " + std::to_string(file.bytes) + ", \"header_crc32c\": \"" +
         hex(file.header_crc32c) + "\", \"tensors\": {" +
         lines(file.tensors, "      ",
               [](const auto& tensor) {
                 return encoded(tensor.first) + ": \"" + hex(tensor.second) + "\"";
               }) +
         "}}";
}

std::string encoded(const std::pair<const std::string, StateValues>& part) {
  return encoded(part.first) + ": {" +
         lines(part.second, "      ",
               [](const auto& value) {
                 return encoded(value.first) + ": " + encoded(value.second);
               }) +
         "}";
}

// --- Reading ------------------------------------------------------------------------------------

class ManifestReader final : public checkpoint::StrictJson {
 public:
  explicit ManifestReader(std::string_view file) : checkpoint::StrictJson(file) {}

  Manifest take() { return std::move(manifest_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return go(Place::top);
    if (place_ == Place::top && key_ == "values") return go(Place::values);
    if (place_ == Place::file && key_ == "tensors") return go(Place::tensors);
    if (place_ == Place::part || place_ == Place::list) {
      special_.reset();
      around_special_ = place_;
      return go(Place::special);
    }
    if (place_ == Place::values) {
      part_ = key_;
      manifest_.values.emplace(part_, StateValues());
      return go(Place::part);
    }
    if (place_ != Place::files) fail("unexpected object");
    file_ = {};
    file_fields_.clear();
    return go(Place::file);
  }

  bool key(std::string& text) override {
    key_ = std::move(text);
    if (is_there()) fail("the key occurs twice");
    if (place_ == Place::top) add_field(manifest_keys, fields_);
    if (place_ == Place::file) add_field(file_keys, file_fields_);
    if (place_ == Place::part) name_ = key_;
    if (place_ == Place::special && key_ != special_key) fail("the key is unknown");
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::part) return put(std::move(text));
    if (place_ == Place::tensors) return file_.tensors.emplace(key_, crc(text)).second;
    if (place_ == Place::special) return put_special(text);
    if (place_ == Place::top && key_ == "crc32c") return true;  // Already compared before parsing.
    if (place_ == Place::top && key_ == "format") {
      if (text != format_name) fail("expected " + shown(format_name) + ", found " + shown(text));
    } else if (place_ == Place::file && key_ == "name") {
      file_.name = std::move(text);
    } else if (place_ == Place::file && key_ == "part") {
      file_.part = std::move(text);
    } else if (place_ == Place::file && key_ == "header_crc32c") {
      file_.header_crc32c = crc(text);
    } else {
      fail("unexpected string");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::top && key_ == "files") return go(Place::files);
    if (place_ != Place::part) fail("unexpected array");
    list_.clear();
    return go(Place::list);
  }

  bool end_array() override {
    if (place_ == Place::files) return go(Place::top);
    place_ = Place::part;
    return put(std::move(list_));
  }

  bool end_object() override {
    if (place_ == Place::top) {
      check_fields(manifest_keys, fields_);
      return go(Place::outside);
    }
    if (place_ == Place::values) return go(Place::top);
    if (place_ == Place::part) return go(Place::values);
    if (place_ == Place::tensors) return go(Place::file);
    if (place_ == Place::special) {
      if (!special_) fail("unexpected object");
      place_ = around_special_;
      return put_double(*special_);
    }
    check_fields(file_keys, file_fields_);
    manifest_.files.push_back(std::move(file_));
    return go(Place::files);
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::part) return put(small(value));
    if (place_ == Place::file && key_ == "bytes") {
      file_.bytes = value;
    } else if (place_ == Place::top && key_ == "version") {
      check_version(value);
    } else if (place_ == Place::top && key_ == "step") {
      manifest_.step = small(value);
    } else if (place_ == Place::top && key_ == "world_size") {
      manifest_.world_size = small<int>(value);
    } else {
      refuse_number(std::to_string(value));
    }
    return true;
  }

  bool number_integer(std::int64_t value) override {
    if (place_ != Place::part) refuse_number(std::to_string(value));
    return put(value);
  }

  bool number_float(double value, const std::string& text) override {
    // An integer arrives here only if it does not fit 64 bits.
    if (text.find_first_of(".eE") == text.npos) fail("the number " + shown(text) + " is too large");
    if (place_ != Place::part && place_ != Place::list) refuse_number(shown(text));
    return put_double(value);
  }

  bool boolean(bool value) override {
    if (place_ != Place::part) fail("unexpected truth value");
    return put(value);
  }

 private:
  using Fields = std::vector<std::string>;
  enum class Place { outside, top, files, file, tensors, values, part, list, special };

  bool go(Place place) {
    place_ = place;
    return true;
  }

  std::string context() const override {
    const std::string file = "file " + std::to_string(manifest_.files.size() + 1) + ": ";
    switch (place_) {
      case Place::outside:
        return {};
      case Place::top:
      case Place::files:
      case Place::values:
        return shown(key_) + ": ";
      case Place::file:
        return file + shown(key_) + ": ";
      case Place::tensors:
        return file + "tensor " + shown(key_) + ": ";
      case Place::part:
      case Place::list:
      case Place::special:
        return "part " + shown(part_) + ": value " + shown(name_) + ": ";
    }
    return {};
  }

  bool is_there() const {
    switch (place_) {
      case Place::top:
        return std::ranges::count(fields_, key_) != 0;
      case Place::file:
        return std::ranges::count(file_fields_, key_) != 0;
      case Place::tensors:
        return file_.tensors.contains(key_);
      case Place::values:
        return manifest_.values.contains(key_);
      case Place::part:
        return manifest_.values.at(part_).contains(key_);
      case Place::special:
        return special_.has_value();
      default:
        return false;
    }
  }

  void add_field(std::span<const std::string_view> known, Fields& fields) const {
    if (std::ranges::find(known, key_) == known.end()) fail("the key is unknown");
    fields.push_back(key_);
  }

  void check_fields(std::span<const std::string_view> known, const Fields& fields) {
    for (const std::string_view key : known) {
      key_ = key;
      if (std::ranges::count(fields, key) == 0) fail("the key is absent");
    }
  }

  void check_version(std::uint64_t version) const {
    if (version > format_version)
      fail("it is " + std::to_string(version) + ", and this program knows only " +
               std::to_string(format_version),
           Fault::unsupported);
    if (version != format_version) fail("there is no version " + std::to_string(version));
  }

  std::uint32_t crc(std::string_view text) const {
    const auto value = from_hex(text);
    if (!value) fail("expected a CRC-32C as 8 digits, found " + shown(text));
    return *value;
  }

  bool put(StateValue value) {
    manifest_.values.at(part_).insert_or_assign(name_, std::move(value));
    return true;
  }

  bool put_double(double value) {
    if (place_ == Place::part) return put(value);
    list_.push_back(value);
    return true;
  }

  bool put_special(std::string_view text) {
    if (text == "nan")
      special_ = std::numeric_limits<double>::quiet_NaN();
    else if (text == "inf" || text == "-inf")
      special_ = (text == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    else
      fail("expected \"inf\", \"-inf\" or \"nan\", found " + shown(text));
    return true;
  }

  Place place_ = Place::outside;
  std::string key_;
  Fields fields_;
  Fields file_fields_;  // Keys of `file_`.
  ManifestFile file_;
  std::string part_;
  std::string name_;
  std::vector<double> list_;
  std::optional<double> special_;
  Place around_special_ = Place::part;
  Manifest manifest_;
};

void check_crc(std::string_view file, std::string_view text) {
  const auto fail = [&](const std::string& what) {
    throw Error(Fault::corrupt, std::string(file) + ": " + what);
  };
  if (text.size() > manifest_limit)
    fail("its " + std::to_string(text.size()) + " bytes exceed the limit of " +
         std::to_string(manifest_limit));
  const auto end = text.substr(text.size() - std::min(text.size(), end_size));
  const auto written =
      end.starts_with(before_crc) && end.ends_with(after_crc) && end.size() == end_size
          ? from_hex(end.substr(before_crc.size(), crc_digits))
          : std::nullopt;
  if (!written) fail("it does not end in its CRC-32C: it is incomplete or damaged");
  const std::uint32_t found = crc_of(text.substr(0, text.size() - end_size));
  if (found != *written)
    fail("it was changed: expected a CRC-32C of " + hex(*written) + ", found " + hex(found));
  if (text.front() != '{') fail("it is not JSON in UTF-8");
}

}  // namespace

bool is_part_name(std::string_view name) {
  const auto may_be_in_one = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 64 && name.front() != '-' &&
         std::ranges::all_of(name, may_be_in_one);
}

std::string format_manifest(const Manifest& manifest) {
  if (const auto found = complaint(manifest)) throw Error(Fault::misuse, "manifest: " + *found);
  const auto line = [](const auto& member) { return encoded(member); };
  std::string text = "{\n  \"format\": \"" + std::string(format_name) +
                     "\",\n  \"version\": " + std::to_string(format_version) +
                     ",\n  \"step\": " + std::to_string(manifest.step) +
                     ",\n  \"world_size\": " + std::to_string(manifest.world_size) +
                     ",\n  \"files\": [" + lines(manifest.files, "    ", line) +
                     "],\n  \"values\": {" + lines(manifest.values, "    ", line) + "}";
  const std::uint32_t crc = crc_of(text);
  text += std::string(before_crc) + hex(crc) + std::string(after_crc);
  require(text.size() <= manifest_limit, [&] {
    return "manifest: " + std::to_string(text.size()) + " bytes exceed the limit of " +
           std::to_string(manifest_limit);
  });
  return text;
}

Manifest parse_manifest(std::string_view file, std::string_view text) {
  check_crc(file, text);
  ManifestReader reader(file);
  reader.read(text);
  Manifest manifest = reader.take();
  if (const auto found = complaint(manifest))
    throw Error(Fault::corrupt, std::string(file) + ": " + *found);
  return manifest;
}

}  // namespace lockstep
