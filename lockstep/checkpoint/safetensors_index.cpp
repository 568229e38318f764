// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_index.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/strict_json.h"

namespace lockstep {
namespace {

constexpr std::string_view map_key = "weight_map";

// An untrusted index must not lead to another folder.
bool lies_in_folder(const std::filesystem::path& file) {
  return !file.empty() && file.is_relative() && file.has_filename() &&
         std::ranges::find(file, "..") == file.end();
}

class IndexReader final : public checkpoint::StrictJson {
 public:
  explicit IndexReader(std::string_view file) : checkpoint::StrictJson(file) {}

  SafetensorsIndex take() {
    if (!has_map_) fail("it has no weight_map");
    return std::move(index_);
  }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && key_ == map_key) is_in_map_ = has_map_ = true;
    if (depth_ > 1 && is_in_map_) fail("unexpected object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) is_in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    require_ignored("array");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(std::string& text) override {
    if (depth_ == 1 && text == map_key && has_map_) fail("weight_map occurs twice");
    key_ = std::move(text);
    return true;
  }

  bool string(std::string& text) override {
    if (!is_in_map_) return require_ignored("string");
    if (!lies_in_folder(text))
      fail("the file " + shown(text) + " does not lie in the folder of the index");
    if (!index_.emplace(key_, std::move(text)).second) fail("the name occurs twice");
    return true;
  }

  bool number_unsigned(std::uint64_t) override { return require_ignored("number"); }
  bool number_integer(std::int64_t) override { return require_ignored("number"); }
  bool number_float(double, const std::string&) override { return require_ignored("number"); }
  bool boolean(bool) override { return require_ignored("truth value"); }
  bool null() override { return require_ignored("null"); }

 private:
  // Only values outside of weight_map may have any type.
  bool require_ignored(const char* kind) const {
    if (depth_ == 0 || is_in_map_ || (depth_ == 1 && key_ == map_key))
      fail(std::string("unexpected ") + kind);
    return true;
  }

  std::string context() const override {
    return is_in_map_ ? "weight_map: tensor " + shown(key_) + ": " : "";
  }

  int depth_ = 0;
  bool is_in_map_ = false;
  bool has_map_ = false;
  std::string key_;
  SafetensorsIndex index_;
};

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view file, std::string_view json) {
  IndexReader reader(file);
  reader.read(json);
  return reader.take();
}

std::string format_safetensors_index(const SafetensorsIndex& index, std::uint64_t total_bytes) {
  std::string json = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_bytes) +
                     "\n  },\n  \"weight_map\": {";
  const char* separator = "\n    ";
  for (const auto& [name, file] : index) {
    json += separator + checkpoint::json_text("safetensors", name) + ": " +
            checkpoint::json_text("safetensors", file);
    separator = ",\n    ";
  }
  return json + (index.empty() ? "" : "\n  ") + "}\n}\n";
}

}  // namespace lockstep
