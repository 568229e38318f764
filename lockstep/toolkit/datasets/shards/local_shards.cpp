// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/local_shards.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/shards/file_lock.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"

namespace lockstep::datasets {
namespace {

constexpr std::size_t most_kept = 64;

// Reading headers may take minutes on slow networks.
constexpr auto longest_indexing = std::chrono::minutes(30);

bool is_index_of(const std::string& path, const FileStamp& stamp, const TarOptions& options) {
  std::error_code absent;
  if (!std::filesystem::exists(path, absent)) return false;
  try {
    const ShardIndex index(path);
    return index->shard() == stamp && index->is_for(options);
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    return false;  // Damaged by a power failure.
  }
}

}  // namespace

LocalShards::LocalShards(std::vector<std::string> paths, std::string index_folder,
                         const TarOptions& options)
    : paths_(std::move(paths)), index_folder_(std::move(index_folder)), options_(options) {}

std::string LocalShards::index_path(std::size_t shard) const {
  if (index_folder_.empty()) return index_beside(paths_[shard]);
  // Shards in several folders may have one name.
  const std::filesystem::path path = std::filesystem::absolute(paths_[shard]).lexically_normal();
  std::array<char, 24> digest{};
  std::snprintf(digest.data(), digest.size(), "-%016llx",
                static_cast<unsigned long long>(hash_of_elements(path.native())));
  return index_folder_ + "/" + index_beside(path.stem().native() + digest.data() + ".tar");
}

bool LocalShards::provide_index(std::size_t shard, bool wait) {
  const std::string& path = paths_[shard];
  FileDescriptor fd = open_to_read(path);
  const FileStamp stamp = stamp_of(fd, path);
  if (is_index_of(index_path(shard), stamp, options_)) return true;

  // Locks the shard: its folder may belong to another user.
  const auto lock =
      FileLock::take(open_to_read(path), path, wait ? in(longest_indexing) : Clock::now());
  if (!lock && wait) throw Error(Fault::timeout, path + ": another process is making its index");
  if (!lock) return false;
  if (is_index_of(index_path(shard), stamp, options_)) return true;
  const std::string index = format_shard_index(path, stamp, read_tar(fd, path, options_));
  try {
    if (!index_folder_.empty()) std::filesystem::create_directories(index_folder_);
    write_shard_index(index_path(shard), index);
  } catch (const std::filesystem::filesystem_error& error) {
    throw_errno(index_folder_, error.code().value());
  } catch (const Error& error) {
    throw Error(Fault::system, bare_text(error) +
                                   ": the shard's index cannot be kept here; name another folder "
                                   "in TarShardsOptions::index_folder");
  }
  return true;
}

std::shared_ptr<const OpenShard> LocalShards::open(std::size_t shard, const ShardIndexView& index) {
  auto open = open_or_keep(shard);
  if (stamp_of(open->fd, open->name) != index.shard())
    throw Error(Fault::corrupt, open->name + ": the shard was changed since its index was made");
  return open;
}

std::shared_ptr<const OpenShard> LocalShards::open_or_keep(std::size_t shard) {
  const std::lock_guard lock(mutex_);
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    if (each->shard != shard) continue;
    kept_.splice(kept_.begin(), kept_, each);
    return each->open;
  }
  auto open = std::make_shared<const OpenShard>(
      OpenShard{.name = paths_[shard], .fd = open_to_read(paths_[shard])});
  kept_.push_front({shard, open});
  if (kept_.size() > most_kept) kept_.pop_back();
  return open;
}

}  // namespace lockstep::datasets
