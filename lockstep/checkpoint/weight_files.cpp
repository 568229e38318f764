// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weight_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/checkpoint/checkpoint_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view usual_index = "model.safetensors.index.json";
constexpr std::string_view usual_file = "model.safetensors";

bool is_pickle_name(std::string_view name) {
  constexpr std::array<std::string_view, 5> endings{".bin", ".pt", ".pth", ".ckpt",
                                                    ".bin.index.json"};
  return std::ranges::any_of(endings, [&](auto ending) { return name.ends_with(ending); });
}

// Sorted, without hidden files such as "._model.safetensors" of macOS.
template <class Predicate>
std::vector<fs::path> files_with(const fs::path& folder, Predicate has_name) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (has_name(name) && !name.starts_with('.')) found.push_back(entry->path());
  }
  if (error) throw_errno(folder.string(), error.value());
  std::ranges::sort(found);
  return found;
}

std::vector<fs::path> ending_with(const fs::path& folder, std::string_view ending) {
  return files_with(folder, [&](std::string_view name) { return name.ends_with(ending); });
}

std::optional<fs::path> index_in(const fs::path& folder) {
  const std::vector<fs::path> indexes = ending_with(folder, safetensors_index_ending);
  if (indexes.empty()) return std::nullopt;
  const auto usual = std::ranges::find(indexes, folder / usual_index);
  if (usual != indexes.end()) return *usual;
  require(indexes.size() == 1, [&] {
    return folder.string() + " has several indexes, such as " + indexes[0].filename().string() +
           " and " + indexes[1].filename().string() + ": give the path of one of them";
  });
  return indexes[0];
}

// "config.json, logs/ and 3 more".
std::string contents_of(const fs::path& folder) {
  constexpr std::size_t most = 5;
  const std::vector<fs::path> all = files_with(folder, [](std::string_view) { return true; });
  std::string text;
  for (const fs::path& path : std::span(all).first(std::min(all.size(), most))) {
    std::error_code error;
    text += (text.empty() ? "" : ", ") + clean_text(path.filename().string());
    if (fs::is_directory(path, error)) text += '/';
  }
  if (all.size() > most) text += " and " + std::to_string(all.size() - most) + " more";
  return text.empty() ? "no files" : text;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  std::string text = folder.string() + " holds no weights. It was searched for " +
                     std::string(usual_index) + ", " + std::string(usual_file) +
                     ", other *.safetensors, and a checkpoint of Lockstep (manifest.json, or "
                     "folders such as step-0000000100). It has " +
                     contents_of(folder);
  if (const std::vector<fs::path> pickles = files_with(folder, is_pickle_name); !pickles.empty())
    text += ". " + clean_text(pickles[0].filename().string()) +
            " must be converted: " + std::string(pickle_remedy);
  throw Error(Fault::misuse, text);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / usual_file, error)) return {folder / usual_file};
  std::vector<fs::path> files = ending_with(folder, ".safetensors");
  if (files.empty()) refuse_folder(folder);
  return files;
}

std::string text_of(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) throw_errno(path.string(), error.value());
  if (!fs::is_regular_file(status))  // Opening a FIFO would wait for a writer.
    throw Error(Fault::system, path.string() + ": not a regular file");
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) throw_errno(path.string(), error.value());
  if (size > safetensors_header_limit)
    throw Error(Fault::corrupt, path.string() + ": an index of " + std::to_string(size) +
                                    " bytes is larger than that of any model");
  return read_file(path.string());
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  require(is_folder || !path.native().ends_with(".bin.index.json"),
          [&] { return path.string() + ": " + std::string(pickle_remedy); });
  if (is_folder)
    index_ = index_in(path);
  else if (path.extension() == ".json")
    index_ = path;
  if (index_)
    open_indexed(*index_);
  else
    open_all(is_folder ? files_in(path) : std::vector{path});
}

void WeightFiles::open_indexed(const fs::path& index) {
  std::map<std::string, std::vector<std::string>> names;  // By file.
  for (auto& [name, file] : parse_safetensors_index(index.string(), text_of(index)))
    names[file].push_back(name);
  for (const auto& [file_name, listed] : names) {
    const fs::path path = index.parent_path() / file_name;
    std::error_code error;
    if (!fs::exists(path, error))
      throw Error(Fault::system, index.string() + " names the file " + shown(file_name) +
                                     ", which is missing: complete the download");
    files_.push_back(std::make_unique<const SafetensorsFile>(path));
    const SafetensorsFile& file = *files_.back();
    std::map<std::string_view, const SafetensorsEntry*> entries;
    for (const SafetensorsEntry& entry : file.header().entries) entries.emplace(entry.name, &entry);
    for (const std::string& name : listed) {
      const auto found = entries.find(name);
      if (found == entries.end())
        throw Error(Fault::corrupt, index.string() + ": tensor " + shown(name) +
                                        " is not in its file " + shown(file_name));
      tensors_.push_back({.file = &file, .entry = found->second});
    }
  }
}

void WeightFiles::open_all(const std::vector<fs::path>& files) {
  std::map<std::string_view, const SafetensorsFile*> known;
  for (const fs::path& path : files) {
    files_.push_back(std::make_unique<const SafetensorsFile>(path));
    const SafetensorsFile& file = *files_.back();
    for (const SafetensorsEntry& entry : file.header().entries) {
      const auto [other, is_new] = known.emplace(entry.name, &file);
      require(is_new, [&, &first = other->second] {
        return "tensor " + shown(entry.name) + " is in " + first->name() + " and in " +
               file.name() + ", and no index decides: give the path of one of the files";
      });
      tensors_.push_back({.file = &file, .entry = &entry});
    }
  }
}

bool has_weight_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return true;
  if (fs::exists(path / checkpoint::manifest_name, error)) return false;
  for (const std::string_view ending : {std::string_view(".safetensors"), safetensors_index_ending})
    if (!ending_with(path, ending).empty()) return true;
  // Beside checkpoints, pickles are ignored.
  return !files_with(path, is_pickle_name).empty() && checkpoint::find_checkpoints(path).empty();
}

std::string place_of_weights(const fs::path& path) {
  if (has_weight_files(path)) return path.string();
  std::optional<std::string> checkpoint = checkpoint::find_checkpoint_in(path);
  if (!checkpoint) refuse_folder(path);
  return *std::move(checkpoint);
}

}  // namespace lockstep
