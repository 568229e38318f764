// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <new>
#include <system_error>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/memory.h"

namespace lockstep {
namespace {

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// The name may contain any character and ends at the last ')'.
std::vector<std::string_view> fields_after_name(std::string_view text) {
  const auto end_of_name = text.rfind(") ");
  if (end_of_name == text.npos) return {};
  text.remove_prefix(end_of_name + 2);
  std::vector<std::string_view> fields;
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find_first_of(" \n"));
    fields.push_back(field);
    text.remove_prefix(std::min(text.size(), field.size() + 1));
  }
  return fields;
}

using Pid = std::atomic<pid_t>;

// A page that the kernel clears in every child, or null. clone() does not run pthread_atfork()
// handlers.
Pid* make_page() {
  const std::size_t bytes = page_size();
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) Pid(0);
  ::munmap(page, bytes);
  return nullptr;
}

}  // namespace

std::optional<std::string> read_proc_file(const std::filesystem::path& file) {
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return fd ? read_proc_file(fd.get()) : std::nullopt;
}

std::optional<std::string> read_proc_file(int fd) {
  std::array<char, 4096> part;
  for (std::string text;;) {
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count == 0) return text;
    if (count > 0)
      text.append(part.data(), static_cast<std::size_t>(count));
    else if (errno != EINTR)
      return std::nullopt;
  }
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename());
  return names;
}

std::vector<pid_t> process_ids(const std::filesystem::path& proc) {
  std::vector<pid_t> found;
  for (const std::string& name : names_in(proc))
    if (const auto pid = number_in<pid_t>(name)) found.push_back(*pid);
  return found;
}

std::optional<ProcessStat> process_stat(pid_t pid, const std::filesystem::path& proc) {
  const auto text = read_proc_file(proc / std::to_string(pid) / "stat");
  return text ? parse_process_stat(*text) : std::nullopt;
}

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  const std::vector<std::string_view> fields = fields_after_name(text);
  const auto field = [&](std::size_t number) {  // As in proc(5): the name is 2.
    return number - 3 < fields.size() ? fields[number - 3] : std::string_view();
  };
  const auto parent = number_in<pid_t>(field(4));
  if (!parent || field(3).empty()) return std::nullopt;
  return ProcessStat{.state = field(3).front(),
                     .parent = *parent,
                     .resident_bytes = number_in<std::int64_t>(field(24)).value_or(0) *
                                       static_cast<std::int64_t>(page_size()),
                     .started = number_in<std::int64_t>(field(22)),
                     .wait_status = number_in<int>(field(52))};
}

std::string command_of(pid_t pid) {
  std::string text = read_proc_file(fmt::format("/proc/{}/cmdline", pid)).value_or("");
  while (text.ends_with('\0')) text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

pid_t this_process() {
  static Pid* const known = make_page();
  if (known == nullptr) return ::getpid();
  pid_t pid = known->load(std::memory_order_relaxed);
  if (pid == 0) {
    pid = ::getpid();
    known->store(pid, std::memory_order_relaxed);
  }
  return pid;
}

std::optional<SocketPeer> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return SocketPeer{.process = peer.pid, .user = peer.uid};
}

}  // namespace lockstep
