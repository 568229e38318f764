// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpoint_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/checkpoint/stored_tensor.h"

namespace lockstep {
namespace {

using checkpoint::StoredTensor;

namespace fs = std::filesystem;

constexpr std::size_t block_size = 256 << 10;  // Bytes per read().

// Follows no links.
FileDescriptor open_in(const FileDescriptor& directory, const fs::path& path) {
  FileDescriptor fd(::openat(directory.get(), path.filename().c_str(),
                             O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) throw Error(Fault::corrupt, path.string() + ": the file is missing");
  if (!fd && errno == ELOOP)
    throw Error(Fault::corrupt, path.string() + ": expected a file, found a symbolic link");
  if (!fd) throw_errno("opening " + path.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("examining " + path.string());
  if (!S_ISREG(status.st_mode))
    throw Error(Fault::corrupt, path.string() + ": it is not a regular file");
  return fd;
}

std::string read_all(const FileDescriptor& fd, const fs::path& path, std::uint64_t limit) {
  std::string text;
  std::string block(block_size, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("reading " + path.string());
    if (got == 0) return text;
    text.append(block, 0, static_cast<std::size_t>(got));
    if (text.size() > limit)
      throw Error(Fault::corrupt, path.string() + ": it is larger than the limit of " +
                                      std::to_string(limit) + " bytes");
  }
}

void require_same_names(const SafetensorsFile& file, const ManifestFile& expected) {
  std::set<std::string> names;
  for (const SafetensorsEntry& entry : file.header().entries) names.insert(entry.name);
  for (const std::string& name : names)
    if (!expected.tensors.contains(name))
      throw Error(Fault::corrupt,
                  file.name() + ": tensor " + shown(name) + " is not in the manifest");
  for (const auto& [name, crc] : expected.tensors)
    if (!names.contains(name))
      throw Error(Fault::corrupt,
                  file.name() + ": tensor " + shown(name) + " of the manifest is missing");
}

}  // namespace

struct CheckpointReader::State {
  explicit State(const fs::path& path)
      : directory(path), fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!fd) throw_errno("opening " + path.string());
    const fs::path manifest_path = path / checkpoint::manifest_name;
    manifest = parse_manifest(manifest_path.string(),
                              read_all(open_in(fd, manifest_path), manifest_path, manifest_limit));
    const auto named = checkpoint::step_in(path.filename().string());
    if (named && *named != manifest.step)
      throw Error(Fault::corrupt, manifest_path.string() + ": it has step " +
                                      std::to_string(manifest.step) +
                                      ", but its folder is named for another step");
    for (const auto& [part, values] : manifest.values) contents[part].values = values;
    for (const ManifestFile& file : manifest.files) add(file);
  }

  void add(const ManifestFile& file) {
    const fs::path path = directory / file.name;
    files.push_back(std::make_unique<SafetensorsFile>(
        path.string(), open_in(fd, path),
        SafetensorsFile::Expected{.bytes = file.bytes, .header_crc32c = file.header_crc32c}));
    const SafetensorsFile& opened = *files.back();
    require_same_names(opened, file);
    for (const SafetensorsEntry& entry : opened.header().entries) {
      const std::uint32_t crc = file.tensors.at(entry.name);
      sources[file.part][entry.name] = {&opened, &entry, crc};
      StateTensor& content = contents[file.part].tensors[entry.name];
      content = whole(checkpoint::empty_of(entry, at::kMeta));
      content.digest = crc;
    }
  }

  const StoredTensor& source(const std::string& part, const std::string& tensor) const {
    const auto in_part = sources.find(part);
    if (in_part != sources.end())
      if (const auto found = in_part->second.find(tensor); found != in_part->second.end())
        return found->second;
    throw Error(Fault::misuse,
                directory.string() + ": part " + shown(part) + " has no tensor " + shown(tensor));
  }

  const fs::path directory;
  const FileDescriptor fd;
  Manifest manifest;
  std::vector<std::unique_ptr<const SafetensorsFile>> files;
  std::map<std::string, std::map<std::string, StoredTensor>> sources;  // By part and name.
  std::map<std::string, StateDict> contents;                           // On the meta device.
};

CheckpointReader::CheckpointReader(const fs::path& directory)
    : state_(std::make_unique<const State>(directory)) {}
CheckpointReader::~CheckpointReader() = default;

const fs::path& CheckpointReader::directory() const { return state_->directory; }
std::int64_t CheckpointReader::step() const { return state_->manifest.step; }
int CheckpointReader::world_size() const { return state_->manifest.world_size; }

std::vector<std::string> CheckpointReader::parts() const {
  std::vector<std::string> names;
  for (const auto& [part, contents] : state_->contents) names.push_back(part);
  return names;
}

std::vector<CheckpointReader::File> CheckpointReader::files() const {
  std::vector<File> files;
  for (const ManifestFile& file : state_->manifest.files)
    files.push_back({file.name, file.part, file.bytes});
  return files;
}

const StateDict& CheckpointReader::contents(const std::string& part) const {
  const auto found = state_->contents.find(part);
  require(found != state_->contents.end(),
          [&] { return directory().string() + " has no part " + shown(part); });
  return found->second;
}

at::Tensor CheckpointReader::read(const std::string& part, const std::string& tensor) const {
  const StoredTensor& source = state_->source(part, tensor);
  return source.read({.begin = 0, .end = source.elements()});
}

StateDict CheckpointReader::read(const std::string& part, const StateRequest& request) const {
  StateDict result;
  result.values = contents(part).values;
  for (const auto& [name, range] : request) {
    const StoredTensor& source = state_->source(part, name);
    result.tensors.emplace(name, StateTensor{.data = source.read(range),
                                             .shape = source.entry->shape,
                                             .begin = range.begin,
                                             .boxes = range.boxes});
  }
  return result;
}

void CheckpointReader::require_readable(const std::string& part,
                                        const StateRequest& request) const {
  for (const auto& [name, range] : request) state_->source(part, name).require_fit(range);
}

void CheckpointReader::verify(const std::string& part, const std::string& tensor) const {
  state_->source(part, tensor).verify();
}

}  // namespace lockstep
