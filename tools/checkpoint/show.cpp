// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "tools/checkpoint/commands.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/source.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::uint64_t size_on_disk(const CheckpointReader& reader) {
  std::uint64_t bytes = 0;
  for (const auto& file : reader.files()) bytes += file.bytes;
  return bytes;
}

std::vector<std::string> parts_of(const CheckpointReader& reader, const std::string& part) {
  if (part.empty()) return reader.parts();
  require_part(reader.directory(), reader.parts(), part);
  return {part};
}

// --- For people ---------------------------------------------------------------------------------

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

using TypeText = std::function<std::string(const std::string& name, const at::Tensor& tensor)>;

void print_tensors(const StateDict& state, const TypeText& text_of) {
  std::size_t names = 0;
  std::size_t types = 0;
  for (const auto& [name, tensor] : state.tensors) {
    names = std::max(names, shown(name).size());
    types = std::max(types, text_of(name, tensor.data).size());
  }
  for (const auto& [name, tensor] : state.tensors)
    print("  " + padded(shown(name), names) + "  " + padded(text_of(name, tensor.data), types) +
          "  " + bytes_text(tensor.data.nbytes()) + "\n");
}

void print_values(const StateDict& state) {
  std::size_t names = 0;
  for (const auto& [name, value] : state.values) names = std::max(names, shown(name).size());
  for (const auto& [name, value] : state.values)
    print("  " + padded(shown(name), names) + "  = " + value_text(value) + "\n");
}

void print_part(const CheckpointReader& reader, const std::string& part) {
  const StateDict& state = reader.contents(part);
  print("\n" + part + ": " + count_text(state.tensors.size(), "tensor") + " of " +
        bytes_text(bytes_of(state)) + ", " + count_text(state.values.size(), "value") + "\n");
  for (const auto& file : reader.files())
    if (file.part == part) print("  in " + file.name + ", " + bytes_text(file.bytes) + "\n");
  print_tensors(state,
                [](const std::string&, const at::Tensor& tensor) { return type_text(tensor); });
  print_values(state);
}

void print_checkpoint(const CheckpointReader& reader, const std::string& part) {
  print(reader.directory().string() + ": step " + std::to_string(reader.step()) + ", saved by " +
        count_text(static_cast<std::size_t>(reader.world_size()), "rank") + ", " +
        count_text(reader.files().size(), "file") + " of " + bytes_text(size_on_disk(reader)) +
        "\n");
  for (const std::string& name : parts_of(reader, part)) print_part(reader, name);
}

void print_list(const fs::path& folder) {
  for (const fs::path& each : list_checkpoints(folder)) try {
      const CheckpointReader reader(each);
      print(each.filename().string() + "  step " + std::to_string(reader.step()) + ", " +
            bytes_text(size_on_disk(reader)) + ", " +
            count_text(static_cast<std::size_t>(reader.world_size()), "rank") + "\n");
    } catch (const Error& error) {
      print(each.filename().string() + "  damaged: " + bare_text(error) + "\n");
    }
}

void print_weights(const fs::path& path, const WeightsSource& source) {
  const StateDict& state = source.contents({});
  const WeightFiles& files = source.files();
  print(path.string() + ": " + count_text(state.tensors.size(), "tensor") + " of " +
        bytes_text(bytes_of(state)) + "\n");
  if (files.index()) print("  index " + files.index()->string() + "\n");
  if (files.files().size() > 1)
    for (const auto& file : files.files())
      print("  in " + file->name() + ", " + bytes_text(file->size()) + "\n");
  print_tensors(state, [&](const std::string& name, const at::Tensor& tensor) {
    const SafetensorsEntry* const other = source.other_type(name);
    return other == nullptr ? type_text(tensor) : describe(*other);
  });
}

// --- For programs -------------------------------------------------------------------------------

// JSON has neither infinities nor NaN.
Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(value_text(value)); }

struct ValueJson {
  Json operator()(const std::vector<double>& values) const {
    Json list = Json::array();
    for (const double value : values) list.push_back(json_of(value));
    return list;
  }
  Json operator()(double value) const { return json_of(value); }
  template <class T>
  Json operator()(const T& value) const {
    return value;
  }
};

Json json_of(const StateDict& state) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : state.tensors)
    tensors[name] = {{"dtype", dtype_of(tensor.data)},
                     {"shape", tensor.data.sizes().vec()},
                     {"bytes", tensor.data.nbytes()}};
  Json values = Json::object();
  for (const auto& [name, value] : state.values) values[name] = std::visit(ValueJson(), value);
  return {{"tensors", tensors}, {"values", values}};
}

Json summary_of(const CheckpointReader& reader) {
  return {{"path", reader.directory().string()},
          {"step", reader.step()},
          {"ranks", reader.world_size()},
          {"bytes", size_on_disk(reader)}};
}

Json json_of(const CheckpointReader& reader, const std::string& part) {
  Json all = summary_of(reader);
  for (const std::string& name : parts_of(reader, part)) {
    Json files = Json::array();
    for (const auto& file : reader.files())
      if (file.part == name) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
    Json entry = json_of(reader.contents(name));
    entry["files"] = std::move(files);
    all["parts"][name] = std::move(entry);
  }
  return all;
}

Json list_of(const fs::path& folder) {
  Json list = Json::array();
  for (const fs::path& each : list_checkpoints(folder)) try {
      list.push_back(summary_of(CheckpointReader(each)));
    } catch (const Error& error) {
      list.push_back({{"path", each.string()}, {"damaged", bare_text(error)}});
    }
  return list;
}

void print_json(const Json& json) {
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json json_of(const fs::path& path, const WeightsSource& source) {
  Json all{{"path", path.string()}};
  if (source.files().index()) all["index"] = source.files().index()->string();
  Json files = Json::array();
  for (const auto& file : source.files().files())
    files.push_back({{"name", file->name()}, {"bytes", file->size()}});
  all["files"] = std::move(files);
  all.update(json_of(source.contents({})));
  all.erase("values");
  for (auto& [name, tensor] : all["tensors"].items())
    if (const SafetensorsEntry* const other = source.other_type(name)) {
      tensor["dtype"] = other->other_type;
      tensor["shape"] = other->shape;
    }
  return all;
}

// The newest readable checkpoint; the list reports damaged ones.
fs::path newest_readable(const fs::path& folder) {
  const std::vector<fs::path> all = list_checkpoints(folder);
  for (const fs::path& each : all) {
    try {
      const CheckpointReader reader(each);
      return each;
    } catch (const Error&) {
      continue;
    }
  }
  return all.front();
}

}  // namespace

int show(const ShowOptions& options) {
  const Kind kind = kind_of(options.path);
  if (kind == Kind::weights) {
    const WeightsSource source(options.path, options.part);
    if (options.json)
      print_json(json_of(options.path, source));
    else
      print_weights(options.path, source);
    return 0;
  }
  Json all;
  const bool folder = kind == Kind::folder;
  if (folder && options.json) all["checkpoints"] = list_of(options.path);
  if (folder && !options.json) print_list(options.path);
  const CheckpointReader reader(folder ? newest_readable(options.path) : options.path);
  if (!options.json) {
    if (folder) print("\n");
    print_checkpoint(reader, options.part);
  } else if (folder) {
    all["latest"] = json_of(reader, options.part);
    print_json(all);
  } else {
    print_json(json_of(reader, options.part));
  }
  return 0;
}

}  // namespace lockstep::checkpoint
