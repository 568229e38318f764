// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/shards/file_lock.h"

namespace lockstep::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t usual_bytes = std::uint64_t{64} << 30;

constexpr auto longest_use = std::chrono::seconds(30);

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_errno(path.string(), error.value());
}

struct CachedShard {
  fs::path path;
  std::uint64_t bytes;
  std::chrono::nanoseconds used;  // Since 1970.
};

// Nothing unless `path` is a file; another process may have removed it.
std::optional<CachedShard> shard_at(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    throw_errno(path.string());
  }
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  return CachedShard{.path = path,
                     .bytes = static_cast<std::uint64_t>(status.st_size),
                     .used = std::chrono::seconds(status.st_mtim.tv_sec) +
                             std::chrono::nanoseconds(status.st_mtim.tv_nsec)};
}

// Least recently used first.
std::vector<CachedShard> shards_in(const fs::path& folder) {
  std::vector<CachedShard> shards;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".tar") continue;
    if (auto shard = shard_at(entry->path())) shards.push_back(*std::move(shard));
  }
  if (error) throw_errno(folder.string(), error.value());
  std::ranges::sort(shards, {}, &CachedShard::used);
  return shards;
}

// Fails while a process has it open.
bool evict(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
  return ::unlink(path.c_str()) == 0;
}

std::uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) throw_errno(folder.string());
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

std::uint64_t bytes_of(const std::vector<CachedShard>& shards) {
  std::uint64_t bytes = 0;
  for (const CachedShard& shard : shards) bytes += shard.bytes;
  return bytes;
}

// Removed by the destructor.
class PartFolder {
 public:
  explicit PartFolder(fs::path path) : path_(std::move(path)) {
    remove();
    make_folders(path_);
  }
  ~PartFolder() { remove(); }
  PartFolder(const PartFolder&) = delete;
  PartFolder& operator=(const PartFolder&) = delete;

  // A killed process's command may still write its file.
  std::string new_file() const {
    static std::atomic<int> serial{0};
    return path_ / (std::to_string(::getpid()) + "-" + std::to_string(serial++));
  }

 private:
  void remove() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  const fs::path path_;
};

}  // namespace

ShardCache::ShardCache(std::string folder, std::optional<std::uint64_t> bytes)
    : folder_(std::move(folder)) {
  make_folders(fs::path(folder_) / "locks");
  make_folders(fs::path(folder_) / "parts");
  remove_unfinished();
  const FileLock lock = lock_room(in(longest_use));
  const std::uint64_t room = bytes_of(shards_in(folder_)) + free_bytes(folder_);
  if (bytes && *bytes > room)
    throw Error(Fault::system, "TarShardsOptions::cache_bytes is " + std::to_string(*bytes) +
                                   ", and the disk of " + folder_ + " has room for " +
                                   std::to_string(room) + " bytes, those of the cache included");
  bytes_ = bytes.value_or(std::min(usual_bytes, room));
}

void ShardCache::remove_unfinished() const {
  std::error_code error;
  std::vector<fs::path> parts;
  for (fs::directory_iterator entry(folder_ + "/parts", error), end; !error && entry != end;
       entry.increment(error))
    parts.push_back(entry->path());
  for (const fs::path& part : parts) {
    const auto lock = FileLock::take(folder_ + "/locks/" + part.filename().string(), Clock::now());
    if (lock) fs::remove_all(part, error);
  }
}

std::optional<FileDescriptor> ShardCache::find(const std::string& name) const {
  FileDescriptor fd(::open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) throw_errno(path(name));
  // The shard may just have been evicted; the open file is complete.
  while (::flock(fd.get(), LOCK_SH) != 0)
    if (errno != EINTR) throw_errno(path(name));
  // Another user's shard keeps its time: it is evicted earlier.
  ::futimens(fd.get(), nullptr);
  return fd;
}

bool ShardCache::provide(const Wanted& wanted, Deadline deadline) const {
  const auto lock = FileLock::take(folder_ + "/locks/" + wanted.name, deadline);
  if (!lock) return false;
  if (wanted.is_there()) return true;
  make_room(wanted.expected);
  const PartFolder folder(folder_ + "/parts/" + wanted.name);
  const std::string part = folder.new_file();
  wanted.fetch(part);
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(part, error);
  if (error) throw_errno(part, error.value());
  const FileLock room = make_room(bytes);
  // Many commands copy the source's time: the shard would be evicted next.
  ::utimensat(AT_FDCWD, part.c_str(), nullptr, 0);
  if (::rename(part.c_str(), wanted.target.c_str()) != 0) throw_errno(wanted.target);
  return true;
}

void ShardCache::require_fits(std::uint64_t shard_bytes) const {
  require(shard_bytes <= bytes_, [&] {
    return folder_ + ": a shard of " + std::to_string(shard_bytes) +
           " bytes does not fit into the cache of " + std::to_string(bytes_);
  });
}

FileLock ShardCache::lock_room(Deadline deadline) const {
  auto lock = FileLock::take(folder_ + "/locks/.room", deadline);
  if (!lock) throw Error(Fault::timeout, folder_ + ": another process is freeing space");
  return *std::move(lock);
}

// Ignores files being fetched: their processes would wait for each other.
FileLock ShardCache::make_room(std::uint64_t needed) const {
  require_fits(needed);
  const Deadline deadline = in(longest_use);
  for (;; std::this_thread::sleep_for(wait_slice)) {
    FileLock lock = lock_room(deadline);
    const std::vector<CachedShard> shards = shards_in(folder_);
    std::uint64_t used = needed + bytes_of(shards);
    std::uint64_t free = free_bytes(folder_);
    for (const CachedShard& shard : shards) {
      if (used <= bytes_ && needed <= free) break;
      if (!evict(shard.path)) continue;
      used -= shard.bytes;
      free += shard.bytes;
    }
    if (used <= bytes_) return lock;  // Writing the file reports a full disk.
    if (Clock::now() >= deadline)
      throw Error(Fault::system, folder_ + ": all shards in the cache are being read, and " +
                                     std::to_string(used) + " bytes are needed of " +
                                     std::to_string(bytes_) +
                                     ": TarShardsOptions::cache_bytes is too small");
  }
}

}  // namespace lockstep::datasets
