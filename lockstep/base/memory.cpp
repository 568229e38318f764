// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/signals.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

FileDescriptor make_memfd(std::string_view purpose) {
  const std::string name = fmt::format("lockstep {}", purpose);
#ifdef MFD_NOEXEC_SEAL
  FileDescriptor fd(
      ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (fd || errno != EINVAL) return fd;  // Kernels before 6.3.
#endif
  return FileDescriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

[[noreturn]] void throw_not_reserved(int error, std::size_t bytes, std::string_view purpose) {
  rlimit limit{};
  if (error != EFBIG || ::getrlimit(RLIMIT_FSIZE, &limit) != 0)
    throw_errno(fmt::format("reserving {} bytes for {}", bytes, purpose), error);
  throw Error(Fault::system,
              fmt::format("{} needs {} bytes of shared memory, but this process may not make "
                          "files or shared memory of more than {} bytes: raise `ulimit -f`",
                          purpose, bytes, limit.rlim_cur));
}

void resize(int fd, std::size_t bytes, std::size_t reserved, std::string_view purpose) {
  const IgnoreSignals ignore{SIGXFSZ};
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw_not_reserved(errno, bytes, purpose);
  while (::fallocate(fd, 0, 0, static_cast<off_t>(reserved)) != 0)
    if (errno != EINTR) throw_not_reserved(errno, reserved, purpose);
}

// Beyond a memory cgroup's limit, a reservation causes an OOM kill, not an error.
void require_available(std::size_t bytes, std::string_view purpose) {
  const std::size_t available = available_memory();
  if (bytes > available)
    throw Error(Fault::system, fmt::format("{} needs {} bytes of shared memory, but this process "
                                           "may take only {} more",
                                           purpose, bytes, available));
}

// Slower; for kernels without MADV_POPULATE_WRITE. Without memory for a page, read() fails where a
// store would raise SIGBUS.
void fill_with_zeros(std::string_view purpose, std::byte* data, std::size_t bytes) {
  const FileDescriptor zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  if (!zeros) throw_errno("opening /dev/zero");
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t count = ::read(zeros.get(), data + done, bytes - done);
    if (count < 0 && errno != EINTR) throw_not_reserved(errno, bytes, purpose);
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
}

std::optional<std::size_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::size_t number = 0;
  if (in >> number) return number;  // "max" means no limit.
  return std::nullopt;
}

std::size_t mem_available() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  while (std::getline(in, line)) {
    std::size_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %zu kB", &kib) == 1) return kib * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

// In the unified hierarchy, or cgroup v1's memory controller.
fs::path memory_cgroup() {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("0::/")) return "/sys/fs/cgroup" + line.substr(3);
    if (const auto at = line.find(":memory:/"); at != line.npos)
      return "/sys/fs/cgroup/memory" + line.substr(at + 8);
  }
  return {};
}

std::vector<fs::path> memory_cgroups() {
  std::vector<fs::path> groups;
  for (auto group = memory_cgroup(); group.string().starts_with("/sys/fs/cgroup");
       group = group.parent_path())
    groups.push_back(group);
  return groups;
}

std::optional<std::uint64_t> value_in(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  std::string name;
  for (std::uint64_t value = 0; in >> name >> value;)
    if (name == key) return value;
  return std::nullopt;
}

// Cached files count as used, but the kernel reclaims them before an allocation fails.
std::size_t reclaimable_in(const fs::path& stat, std::string_view prefix) {
  return value_in(stat, fmt::format("{}active_file", prefix)).value_or(0) +
         value_in(stat, fmt::format("{}inactive_file", prefix)).value_or(0);
}

std::size_t left_of(std::size_t limit, std::size_t used, std::size_t reclaimable) {
  return limit - std::min(limit, used - std::min(used, reclaimable));
}

std::optional<std::size_t> limit_in(const fs::path& file) {
  constexpr std::size_t none = std::size_t{1} << 60;  // Without a limit: near 2^63 in cgroup v1.
  const auto limit = number_in(file);
  return limit && *limit < none ? limit : std::nullopt;
}

std::size_t left_by(const fs::path& cgroup) {
  if (const auto limit = limit_in(cgroup / "memory.max"))
    return left_of(*limit, number_in(cgroup / "memory.current").value_or(0),
                   reclaimable_in(cgroup / "memory.stat", ""));
  if (const auto limit = limit_in(cgroup / "memory.limit_in_bytes"))
    return left_of(*limit, number_in(cgroup / "memory.usage_in_bytes").value_or(0),
                   reclaimable_in(cgroup / "memory.stat", "total_"));
  return std::numeric_limits<std::size_t>::max();
}

// `oom_kill` of the group at `path` below `mount`, or of its nearest ancestor with that file.
std::optional<std::uint64_t> count_of(const fs::path& mount, fs::path path, const char* file) {
  for (path = path.relative_path();; path = path.parent_path()) {
    if (const auto count = value_in(mount / path / file, "oom_kill")) return count;
    if (path.empty()) return std::nullopt;
  }
}

// /proc/self/cgroup has lines ID:CONTROLLERS:PATH; see cgroups(7).
bool names_memory(std::string_view controllers) {
  return fmt::format(",{},", controllers).find(",memory,") != std::string::npos;
}

std::optional<std::uint64_t> count_of_own_group(const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  std::optional<std::uint64_t> unified;
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (names_memory(controllers)) {  // The unified hierarchy then lacks it.
      if (const auto count = count_of(root / "sys/fs/cgroup/memory", path, "memory.oom_control"))
        return count;
    } else if (controllers.empty()) {
      unified = count_of(root / "sys/fs/cgroup", path, "memory.events");
    }
  }
  return unified;
}

}  // namespace

std::size_t page_size() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = page_size();
  return std::max(page, (bytes + page - 1) / page * page);
}

void reserve_pages(std::string_view purpose, std::byte* data, std::size_t bytes, int processes) {
  require_available(bytes * static_cast<std::size_t>(processes), purpose);
#ifdef MADV_POPULATE_WRITE  // Linux 5.14.
  if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw_not_reserved(errno, bytes, purpose);
#endif
  fill_with_zeros(purpose, data, bytes);
}

void map_all_pages(std::byte* data, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE  // Older kernels map on access.
  ::madvise(data, whole_pages(bytes), MADV_POPULATE_WRITE);
#endif
}

std::size_t available_memory() {
  std::size_t available = mem_available();
  for (const auto& group : memory_cgroups()) available = std::min(available, left_by(group));
  return available;
}

std::optional<std::size_t> memory_limit() {
  std::optional<std::size_t> least;
  for (const auto& group : memory_cgroups())
    for (const char* file : {"memory.max", "memory.limit_in_bytes"})
      if (const auto limit = limit_in(group / file))
        least = std::min(*limit, least.value_or(*limit));
  return least;
}

SharedMapping SharedMapping::create(std::string_view purpose, std::size_t bytes,
                                    std::size_t reserved) {
  bytes = whole_pages(bytes);
  require_available(bytes, purpose);
  FileDescriptor fd = make_memfd(purpose);
  if (!fd) throw_errno(fmt::format("memfd_create for {}", purpose));
  resize(fd.get(), bytes, whole_pages(reserved), purpose);
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw_errno("sealing shared memory");
  return SharedMapping(std::move(fd));
}

SharedMapping SharedMapping::attach(FileDescriptor fd) {
  const int sealed = ::fcntl(fd.get(), F_GET_SEALS);  // The kernel may add F_SEAL_EXEC.
  if (sealed < 0 || (sealed & seals) != seals)
    throw Error(Fault::corrupt, "a peer sent a descriptor that is not sealed shared memory");
  return SharedMapping(std::move(fd));
}

SharedMapping::SharedMapping(FileDescriptor fd) : fd_(std::move(fd)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno("fstat of shared memory");
  bytes_ = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) throw_errno(fmt::format("mapping {} bytes", bytes_));
  data_ = static_cast<std::byte*>(address);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::nanoseconds limit) {
  if (limit.count() <= 0) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::optional<std::uint64_t> oom_kills(const fs::path& root) {
  if (const auto count = count_of_own_group(root)) return count;
  return value_in(root / "proc/vmstat", "oom_kill");
}

}  // namespace lockstep
