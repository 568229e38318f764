// Makes file operations fail, or ends the process in the middle of them. It is a shared library
// that comes before libc: linked to a test, or in LD_PRELOAD.
//
//   LOCKSTEP_TEST_FAULT="in=/runs/a rank=1 at=17 do=kill log=/tmp/operations"
//
//   in=FOLDER  counts operations that change this folder or folders below, except its .lock
//   rank=R     only in the process where RANK is R; by default in every process
//   at=N       the operation, counted from 1; at=N+ for that and all later ones; 0 for all
//   do=kill          SIGKILL before the operation
//      kill-after    SIGKILL after it
//      kill-all      SIGKILL before it, to the whole process group
//      half          SIGKILL after half of a write
//      eio, enospc, edquot, eperm, enosys, eopnotsupp, eacces, einval
//                    fails with this error; a close still closes
//      eintr         fails with it where that may happen, and at most every second time
//      short         writes half, and returns that length
//      full          fails with ENOSPC from the first byte after after=K, and has no fallocate
//   only=NAME  counts only operations of this name, such as symlink
//   log=FILE   appends a line for each: RANK N NAME PATH
//
// Every operation reads the variable: a new value restarts the count. Without the variable the
// library changes nothing.
//
//   LOCKSTEP_TEST_FLOCK_ERROR=37  every flock() fails with this errno

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

namespace {

struct Plan {
  std::string text;  // The variable's value.
  std::string folder;
  std::string action;
  std::string log;
  std::string rank;
  std::string only;
  long at = -1;
  bool and_on = false;  // Whether later operations fail, too.
  long room = 0;        // Bytes until the disk is full.
  long count = 0;
};

std::mutex mutex;
Plan plan;

std::string field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (word.starts_with(key) && word.substr(key.size()).starts_with('='))
      return std::string(word.substr(key.size() + 1));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return "";
}

// Returns false if this process has no fault.
bool read_plan() {
  const char* text = std::getenv("LOCKSTEP_TEST_FAULT");
  if (text == nullptr) {
    plan.text.clear();
    return false;
  }
  const char* rank = std::getenv("RANK");
  if (plan.text != text) {
    plan = {.text = text,
            .folder = field(text, "in"),
            .action = field(text, "do"),
            .log = field(text, "log"),
            .rank = field(text, "rank"),
            .only = field(text, "only")};
    plan.at = std::atol(field(text, "at").c_str());
    if (field(text, "at").empty()) plan.at = -1;
    plan.and_on = field(text, "at").ends_with('+');
    plan.room = std::atol(field(text, "after").c_str());
  }
  return plan.rank.empty() || (rank != nullptr && plan.rank == rank);
}

std::string path_of(int fd) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : "";
}

std::string path_of(int folder, const char* path) {
  if (path == nullptr || path[0] == '/') return path == nullptr ? "" : path;
  char working[PATH_MAX];
  const std::string from = folder != AT_FDCWD                  ? path_of(folder)
                           : ::getcwd(working, sizeof working) ? working
                                                               : "";
  return from + "/" + path;
}

bool is_watched(const std::string& path) {
  return !plan.folder.empty() && path.starts_with(plan.folder) && !path.ends_with("/.lock") &&
         (path.size() == plan.folder.size() || path[plan.folder.size()] == '/');
}

void write_log(const char* name, const std::string& path) {
  if (plan.log.empty()) return;
  const char* rank = std::getenv("RANK");
  const std::string line = std::string(rank == nullptr ? "-" : rank) + " " +
                           std::to_string(plan.count) + " " + name + " " + path + "\n";
  const long fd = ::syscall(SYS_openat, AT_FDCWD, plan.log.c_str(),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::syscall(SYS_write, fd, line.data(), line.size());
  ::syscall(SYS_close, fd);
}

void end_process(bool all = false) {
  ::kill(all ? 0 : ::getpid(), SIGKILL);
  for (;;) ::pause();
}

// Returns the action for the operation that is about to begin; empty for none.
std::string next(const char* name, const std::string& path, const std::string& other = "") {
  const std::lock_guard lock(mutex);
  if (!read_plan() || !(is_watched(path) || is_watched(other))) return "";
  if (!plan.only.empty() && plan.only != name) return "";
  ++plan.count;
  write_log(name, path);
  const bool now = plan.at == 0 || plan.at == plan.count || (plan.and_on && plan.count > plan.at) ||
                   plan.action == "full";
  if (!now) return "";
  if (plan.action == "kill") end_process();
  if (plan.action == "kill-all") end_process(/*all=*/true);
  return plan.action == "eintr" && plan.at == 0 && plan.count % 2 == 0 ? "" : plan.action;
}

template <class... Arguments>
long call(long number, Arguments... arguments) {
  return ::syscall(number, arguments...);
}

long fail(int error) {
  errno = error;
  return -1;
}

// Returns the error that an action is named after; 0 for any other action.
int error_of(const std::string& action) {
  if (action == "eio") return EIO;
  if (action == "enospc") return ENOSPC;
  if (action == "edquot") return EDQUOT;
  if (action == "eperm") return EPERM;
  if (action == "enosys") return ENOSYS;
  if (action == "eacces") return EACCES;
  if (action == "einval") return EINVAL;
  if (action == "eopnotsupp") return EOPNOTSUPP;
  return action == "eintr" ? EINTR : 0;
}

// Performs an operation that is atomic.
template <class... Arguments>
long operate(const std::string& action, bool interruptible, long number, Arguments... arguments) {
  const bool is_close = number == SYS_close;
  const int error = action == "eintr" && !interruptible ? 0 : error_of(action);
  if (error != 0 && !is_close) return fail(error);
  const long result = call(number, arguments...);
  if (action == "kill-after") end_process();
  return error != 0 ? fail(error) : result;
}

// Returns how many of `size` bytes fit.
std::size_t take_room(std::size_t size) {
  const std::lock_guard lock(mutex);
  const std::size_t taken = std::min(size, static_cast<std::size_t>(plan.room));
  plan.room -= static_cast<long>(taken);
  return taken;
}

// `perform(n)` writes n bytes.
template <class Perform>
ssize_t operate_write(const char* name, int fd, std::size_t size, Perform perform) {
  const std::string action = next(name, path_of(fd));
  if (const int error = error_of(action)) return fail(error);
  if (action == "short") return perform((size + 1) / 2);
  if (action == "full" && size > 0) {
    const std::size_t room = take_room(size);
    return room == 0 ? fail(ENOSPC) : perform(room);
  }
  const long result = perform(action == "half" ? size / 2 : size);
  if (action == "half" || action == "kill-after") end_process();
  return result;
}

bool is_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT) != 0; }

int operate_open(int folder, const char* path, int flags, mode_t mode) {
  const std::string action =
      is_for_writing(flags) ? next("open", path_of(folder, path)) : std::string();
  return static_cast<int>(operate(action, true, SYS_openat, folder, path, flags, mode));
}

int operate_fallocate(int fd, int mode, off_t offset, off_t size) {
  const std::string action = next("fallocate", path_of(fd));
  if (action == "full") return static_cast<int>(fail(EOPNOTSUPP));
  return static_cast<int>(operate(action, true, SYS_fallocate, fd, mode, offset, size));
}

int operate_on(const char* name, int fd, long number) {
  return static_cast<int>(
      operate(next(name, path_of(fd)), number != SYS_sync_file_range, number, fd));
}

int operate_rename(int from_folder, const char* from, int to_folder, const char* to,
                   unsigned flags) {
  const std::string action = next("rename", path_of(from_folder, from), path_of(to_folder, to));
  return static_cast<int>(
      operate(action, false, SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int operate_unlink(int folder, const char* path, int flags) {
  const char* name = (flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink";
  return static_cast<int>(
      operate(next(name, path_of(folder, path)), false, SYS_unlinkat, folder, path, flags));
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return operate_open(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return operate_open(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return operate_open(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return operate_open(folder, path, flags, mode);
}

int creat(const char* path, mode_t mode) {
  return operate_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

int creat64(const char* path, mode_t mode) {
  return operate_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

// The C library has a struct of this name, too.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
int flock(int fd, int operation) {
#pragma GCC diagnostic pop
  if (const char* const error = std::getenv("LOCKSTEP_TEST_FLOCK_ERROR"))
    return static_cast<int>(fail(std::atoi(error)));
  return static_cast<int>(call(SYS_flock, fd, operation));
}

ssize_t write(int fd, const void* data, size_t size) {
  return operate_write("write", fd, size, [&](size_t n) { return call(SYS_write, fd, data, n); });
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return operate_write("pwrite", fd, size,
                       [&](size_t n) { return call(SYS_pwrite64, fd, data, n, offset); });
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return ::pwrite(fd, data, size, offset);
}

// Writes each part with a separate write.
ssize_t writev(int fd, const iovec* parts, int count) {
  ssize_t written = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t now = ::write(fd, parts[i].iov_base, parts[i].iov_len);
    if (now < 0) return written > 0 ? written : now;
    written += now;
    if (static_cast<size_t>(now) < parts[i].iov_len) break;
  }
  return written;
}

ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  ssize_t written = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t now = ::pwrite(fd, parts[i].iov_base, parts[i].iov_len, offset + written);
    if (now < 0) return written > 0 ? written : now;
    written += now;
    if (static_cast<size_t>(now) < parts[i].iov_len) break;
  }
  return written;
}

ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return ::pwritev(fd, parts, count, offset);
}

ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size,
                        unsigned flags) {
  return operate_write("copy_file_range", to, size, [&](size_t n) {
    return call(SYS_copy_file_range, from, from_offset, to, to_offset, n, flags);
  });
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  return operate_fallocate(fd, mode, offset, size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return operate_fallocate(fd, mode, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size) {
  return operate_fallocate(fd, 0, offset, size) == 0 ? 0 : errno;
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
  return ::posix_fallocate(fd, offset, size);
}

int ftruncate(int fd, off_t size) noexcept {
  return static_cast<int>(operate(next("ftruncate", path_of(fd)), true, SYS_ftruncate, fd, size));
}

int ftruncate64(int fd, off64_t size) noexcept { return ::ftruncate(fd, size); }

int fsync(int fd) { return operate_on("fsync", fd, SYS_fsync); }
int fdatasync(int fd) { return operate_on("fdatasync", fd, SYS_fdatasync); }

int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
  return static_cast<int>(operate(next("sync_file_range", path_of(fd)), false, SYS_sync_file_range,
                                  fd, offset, size, flags));
}

int close(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  const bool counts = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  return static_cast<int>(operate(counts ? next("close", path_of(fd)) : "", true, SYS_close, fd));
}

int rename(const char* from, const char* to) noexcept {
  return operate_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return operate_rename(from_folder, from, to_folder, to, 0);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return operate_rename(from_folder, from, to_folder, to, flags);
}

int symlinkat(const char* target, int folder, const char* path) noexcept {
  return static_cast<int>(
      operate(next("symlink", path_of(folder, path)), false, SYS_symlinkat, target, folder, path));
}

int symlink(const char* target, const char* path) noexcept {
  return ::symlinkat(target, AT_FDCWD, path);
}

int linkat(int from_folder, const char* from, int folder, const char* path, int flags) noexcept {
  return static_cast<int>(operate(next("link", path_of(folder, path)), false, SYS_linkat,
                                  from_folder, from, folder, path, flags));
}

int link(const char* from, const char* path) noexcept {
  return ::linkat(AT_FDCWD, from, AT_FDCWD, path, 0);
}

int unlink(const char* path) noexcept { return operate_unlink(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return operate_unlink(folder, path, flags);
}
int rmdir(const char* path) noexcept { return operate_unlink(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return static_cast<int>(
      operate(next("mkdir", path_of(folder, path)), false, SYS_mkdirat, folder, path, mode));
}

int mkdir(const char* path, mode_t mode) noexcept { return ::mkdirat(AT_FDCWD, path, mode); }

}  // extern "C"
#pragma GCC visibility pop
