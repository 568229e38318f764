// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/store.h"
#include "lockstep/job/store/store_protocol.h"
#include "lockstep/job/store/store_service.h"

namespace lockstep {
namespace {

using job::file_store_magic;
using job::FileStoreRecord;
using job::record_header_bytes;
using job::StoreTable;

using std::chrono::microseconds;

constexpr microseconds first_pause{50};
constexpr microseconds longest_lock_pause{5'000};
constexpr microseconds longest_wait_pause{50'000};
constexpr std::chrono::seconds last_look{1};  // By which wait() may exceed its deadline.
constexpr off_t least_bytes_to_compact = off_t{1} << 20;

void pause_before(Deadline deadline, microseconds& pause, microseconds longest) {
  std::this_thread::sleep_until(std::min(deadline, Clock::now() + pause));
  pause = std::min(2 * pause, longest);
}

FileDescriptor open_private(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600));
  if (!file && errno == ELOOP)
    throw Error(Fault::misuse, fmt::format("store file {} is a symbolic link", path));
  if (!file) throw_errno(fmt::format("opening store file {}", path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno(fmt::format("examining store file {}", path));
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    throw Error(
        Fault::misuse,
        fmt::format("store file {} must be a regular file of this user's with mode 0600", path));
  return file;
}

void write_at(int file, std::string_view bytes, off_t offset, const std::string& path) {
  const IgnoreSignals ignore{SIGXFSZ};
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(fmt::format("writing store file {}", path));
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
}

std::string read_at(int file, std::size_t count, off_t offset, const std::string& path) {
  std::string bytes(count, '\0');
  std::size_t done = 0;
  while (done < count) {
    const ssize_t part =
        ::pread(file, bytes.data() + done, count - done, offset + static_cast<off_t>(done));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) throw_errno(fmt::format("reading store file {}", path));
    if (part == 0) break;
    done += static_cast<std::size_t>(part);
  }
  bytes.resize(done);
  return bytes;
}

class FileLock {
 public:
  FileLock(int file, int kind, const std::string& path)
      : file_(file), held_(::flock(file, kind | LOCK_NB) == 0) {
    if (!held_ && errno != EWOULDBLOCK && errno != EINTR)
      throw_errno(fmt::format("locking store file {}", path));
  }
  ~FileLock() {
    if (held_) ::flock(file_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return held_; }

 private:
  const int file_;
  const bool held_;
};

}  // namespace

class FileStore::Log {
 public:
  explicit Log(const FileStoreOptions& options)
      : path_(options.path), timeout_(options.timeout), file_(open_private(path_, O_CREAT)) {
    change("", [](StoreTable&) { return false; });
  }

  // False if the lock is not free by the deadline.
  bool look(Deadline deadline, const std::function<void(const StoreTable&)>& act) {
    return locked(LOCK_SH, deadline, [&] { act(table_); });
  }

  void look(const std::function<void(const StoreTable&)>& act) {
    if (!look(in(timeout_), act)) throw_lock_timeout();
  }

  // `act` returns whether it changed the value at `key`.
  void change(std::string_view key, const std::function<bool(StoreTable&)>& act) {
    const auto act_and_record = [&] {
      if (act(table_)) record(key);
      if (is_mostly_outdated()) compact();
    };
    if (!locked(LOCK_EX, in(timeout_), act_and_record)) throw_lock_timeout();
  }

 private:
  [[noreturn]] void throw_lock_timeout() const {
    throw Error(Fault::timeout,
                fmt::format("another process has held the lock of store file {} for {} ms", path_,
                            timeout_.count()));
  }

  [[noreturn]] void throw_corrupt(off_t offset, std::string_view why) const {
    throw Error(Fault::corrupt, fmt::format("store file {} at byte {}: {}", path_, offset, why));
  }

  // Runs `act` with the lock held and the table up to date.
  bool locked(int kind, Deadline deadline, const std::function<void()>& act) {
    for (microseconds pause = first_pause;; pause_before(deadline, pause, longest_lock_pause)) {
      const std::lock_guard guard(mutex_);
      if (try_locked(kind, act)) return true;
      if (!is_current()) reopen();
      if (Clock::now() >= deadline) return false;
    }
  }

  bool try_locked(int kind, const std::function<void()>& act) {
    const FileLock lock(file_.get(), kind, path_);
    if (!lock.held() || !is_current()) return false;
    catch_up(kind == LOCK_EX);
    act();
    return true;
  }

  // Compacting replaces the file of that name.
  bool is_current() const {
    struct stat here {};
    struct stat there {};
    if (::fstat(file_.get(), &here) != 0)
      throw_errno(fmt::format("examining store file {}", path_));
    return ::lstat(path_.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
  }

  void reopen() {
    file_ = open_private(path_, 0);
    forget();
  }

  void forget() {
    table_ = StoreTable();
    end_ = 0;
  }

  // Applies what others wrote since.
  // `repair`: removes an incomplete last record.
  void catch_up(bool repair) {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0)
      throw_errno(fmt::format("examining store file {}", path_));
    if (status.st_size < end_) throw_corrupt(end_, "the file has become shorter");
    if (status.st_size == end_ && end_ > 0) return;
    try {
      if (end_ == 0) read_magic(repair);
      while (end_ > 0 && read_record()) continue;
    } catch (const Error& error) {
      const off_t where = end_;
      forget();
      if (error.fault() == Fault::corrupt) throw_corrupt(where, bare_text(error));
      throw;
    }
    if (repair && ::ftruncate(file_.get(), end_) != 0)
      throw_errno(fmt::format("shortening store file {}", path_));
  }

  // A new file is empty, or has a part of the magic if its creator was killed.
  void read_magic(bool repair) {
    const std::string found = read_at(file_.get(), file_store_magic.size(), 0, path_);
    if (!file_store_magic.starts_with(found))
      throw Error(Fault::corrupt, "not a store file of this version");
    if (found.size() < file_store_magic.size() && !repair) return;
    if (repair)
      write_at(file_.get(), file_store_magic.substr(found.size()), static_cast<off_t>(found.size()),
               path_);
    end_ = static_cast<off_t>(file_store_magic.size());
  }

  bool read_record() {
    const std::string header = read_at(file_.get(), record_header_bytes, end_, path_);
    if (header.size() < record_header_bytes) return false;
    const std::size_t length = job::body_bytes(header);
    const off_t body_at = end_ + static_cast<off_t>(header.size());
    const std::string body = read_at(file_.get(), length, body_at, path_);
    if (body.size() < length) return false;
    const FileStoreRecord record = job::decode_record(header, body);
    if (record.kind == FileStoreRecord::Kind::set)
      table_.set(record.key, record.value);
    else
      table_.erase(record.key);
    end_ = body_at + static_cast<off_t>(length);
    return true;
  }

  void record(std::string_view key) {
    const StoreTable::Value value = table_.find(key);
    const auto kind = value ? FileStoreRecord::Kind::set : FileStoreRecord::Kind::erase;
    const std::string bytes = job::encode({kind, key, value ? std::string_view(*value) : ""});
    try {
      write_at(file_.get(), bytes, end_, path_);
    } catch (const Error&) {
      forget();  // The table is ahead of the file.
      throw;
    }
    end_ += static_cast<off_t>(bytes.size());
  }

  bool is_mostly_outdated() const {
    const auto live =
        static_cast<off_t>(table_.bytes() + table_.values().size() * record_header_bytes);
    return end_ > least_bytes_to_compact && end_ / 4 > live;
  }

  // Writes the entries to a new file, which replaces the old one, whose lock the caller holds.
  void compact() {
    const std::string temporary = path_ + ".compact";
    ::unlink(temporary.c_str());
    try {
      const FileDescriptor file = open_private(temporary, O_CREAT | O_EXCL);
      off_t end = 0;
      const auto append = [&](std::string_view bytes) {
        write_at(file.get(), bytes, end, temporary);
        end += static_cast<off_t>(bytes.size());
      };
      append(file_store_magic);
      for (const auto& [key, value] : table_.values())
        append(job::encode({FileStoreRecord::Kind::set, key, *value}));
      if (::rename(temporary.c_str(), path_.c_str()) != 0)
        throw_errno(fmt::format("renaming {}", temporary));
    } catch (const Error& error) {
      ::unlink(temporary.c_str());
      log(LogLevel::warning, bare_text(error));  // The change is done; the next one retries.
    }
  }

  const std::string path_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;  // Guards the members below. Not held while waiting for the file lock.
  FileDescriptor file_;
  StoreTable table_;
  off_t end_ = 0;  // The table is current up to here; 0 before the first read.
};

FileStore::FileStore(const FileStoreOptions& options) : log_(std::make_unique<Log>(options)) {}

FileStore::~FileStore() = default;

void FileStore::set(std::string_view key, std::string_view value) {
  log_->change(key, [&](StoreTable& table) {
    table.set(key, value);
    return true;
  });
}

std::optional<std::string> FileStore::find(std::string_view key) {
  std::optional<std::string> found;
  log_->look([&](const StoreTable& table) {
    if (const StoreTable::Value value = table.find(key)) found = *value;
  });
  return found;
}

std::string FileStore::wait(std::string_view key, Deadline deadline) {
  const auto start = Clock::now();
  std::optional<std::string> found;
  const auto look = [&](const StoreTable& table) {
    if (const StoreTable::Value value = table.find(key)) found = *value;
  };
  for (microseconds pause = first_pause;; pause_before(deadline, pause, longest_wait_pause)) {
    const bool looked = log_->look(std::max(deadline, in(last_look)), look);
    if (found) return *std::move(found);
    if (!looked || Clock::now() >= deadline) job::throw_wait_timeout(key, start);
  }
}

std::int64_t FileStore::add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = 0;
  log_->change(key, [&](StoreTable& table) {
    sum = table.add(key, amount);
    return true;
  });
  return sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  std::string result;
  log_->change(key, [&](StoreTable& table) {
    const StoreTable::Value before = table.find(key);
    result = table.compare_set(key, expected, desired);
    return table.find(key) != before;
  });
  return result;
}

bool FileStore::erase(std::string_view key) {
  bool erased = false;
  log_->change(key, [&](StoreTable& table) { return erased = table.erase(key); });
  return erased;
}

}  // namespace lockstep
