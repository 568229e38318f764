// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/message_parts.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/job_control_block.h"

namespace lockstep {
namespace {

// For the file that torchrun and `lockstep run` read, in the format of
// torch.distributed.elastic.multiprocessing.errors.
struct ErrorReport {
  std::string message = {};     // "Type: text".
  std::string call_stack = {};  // Shown before the message, unless empty.
  std::string traceback = {};   // Another language's; replaces both unless empty.

  // torchrun shows the earliest second's error first, so a consequence needs a later time, whatever
  // the clock returns.
  bool is_consequence = false;
};

// torchrun assigns a rank without a file the second in which it detects the end, up to 1 s late.
constexpr std::time_t time_of_consequences = 2;

std::string json(const ErrorReport& report) {
  std::string stack = report.message;
  if (!report.traceback.empty())
    stack = report.traceback;
  else if (!report.call_stack.empty())
    stack = "Call stack (innermost call first):\n" + report.call_stack + report.message;
  const std::time_t now = std::time(nullptr);
  const std::time_t stamp = report.is_consequence ? now + time_of_consequences : now;
  const nlohmann::json error = {
      {"message",
       {{"message", report.message},
        {"extraInfo", {{"py_callstack", stack}, {"timestamp", std::to_string(stamp)}}}}}};
  return error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FileDescriptor open_file(const std::string& path) {
  const bool own = path.starts_with("/proc/self/fd/") || path.starts_with("/dev/fd/");
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | (own ? 0 : O_NOFOLLOW);
  return FileDescriptor(::open(path.c_str(), flags, 0600));
}

// False for links, pipes and devices.
bool may_be_replaced(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT;
  return S_ISREG(status.st_mode);
}

// Replaces the file in TORCHELASTIC_ERROR_FILE atomically, mode 0600. Follows no symbolic links
// except /proc/self/fd/N. Returns false on errors: the caller already handles a more important one.
bool write_error_file(const ErrorReport& report) noexcept {
  const char* path = read_variable("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return false;
  try {
    const std::string text = json(report);
    if (may_be_replaced(path)) {
      write_small_file(path, text);
      return true;
    }
    const FileDescriptor file = open_file(path);
    if (file) write_all(file.get(), text);
    return static_cast<bool>(file);
  } catch (...) {  // A full disk, or no memory.
    return false;
  }
}

struct Place {
  std::shared_ptr<const JobControlBlock> page;
  int slot = 0;

  bool is_of(pid_t pid) const { return page->pid(slot) == pid; }
  JobControlBlock::Phase phase() const { return page->phase(slot); }
};

// Never destroyed: static objects may throw at exit.
struct Places {
  std::atomic<pid_t> pid{0};  // The rank's, not its fork()ed children's.
  std::mutex mutex;
  std::vector<Place> taken;
};

Places& places() {
  static Places& ours = *new Places;
  return ours;
}

// A fork()ed child must not report for the rank. In it, mutexes of other threads stay
// locked.
bool is_child_of_rank() {
  Places& ours = places();
  const pid_t rank = ours.pid;
  if (rank == 0 || rank == this_process()) return false;
  const std::unique_lock lock(ours.mutex, std::try_to_lock);
  if (!lock || ours.taken.empty()) return true;
  return std::ranges::any_of(ours.taken, [&](const Place& place) {
    return place.is_of(rank) && place.phase() == JobControlBlock::Phase::alive;
  });
}

// Programs that a rank starts inherit its variables. Launchers start ranks as group leaders.
bool is_rank() { return places().pid != 0 || ::getpgrp() == ::getpid(); }

// Returns false without peers. `is_ending`: this process will not return, so peers must not wait.
bool tell_peers(const std::string& text, std::optional<Fault> fault, bool is_ending) {
  Places& ours = places();
  bool has_peers = false;
  const std::lock_guard lock(ours.mutex);
  for (const Place& place : ours.taken) {
    if (!place.is_of(this_process())) continue;  // Another process has the slot.
    place.page->write_exit_report(place.slot, text, fault);
    has_peers = true;
    if (is_ending && place.phase() == JobControlBlock::Phase::alive)
      place.page->abandon(place.slot);
  }
  return has_peers;
}

enum class Telling { not_yet, now, done };
std::atomic<Telling> telling{Telling::not_yet};
std::atomic<bool> launcher_has_report{false};

template <class Report>
void tell_once(const Report& report) noexcept {
  Telling none = Telling::not_yet;
  if (is_child_of_rank() || !telling.compare_exchange_strong(none, Telling::now)) return;
  try {
    report();
  } catch (...) {  // Out of memory.
  }
  telling = Telling::done;
}

// Peers first: they are waiting.
void tell(const std::exception_ptr& error, bool is_ending) noexcept {
  if (!error) return;
  tell_once([&] {
    ErrorReport report{.message = exception_text(error), .is_consequence = is_consequence(error)};
    const bool told =
        !report.is_consequence && tell_peers(report.message, fault_in(error), is_ending);
    if (is_ending) report.call_stack = call_stack(2);
    launcher_has_report = (write_error_file(report) && is_rank()) || told;
  });
}

// `lockstep run` reports the first failure for all ranks; other messages would repeat it.
LogLevel level_of_report() {
  return read_variable("LOCKSTEP_AGENT_FD") != nullptr ? LogLevel::info : LogLevel::error;
}

// One line per part, as the launcher prints them.
void log_end(const std::exception_ptr& error, std::string_view consequence) {
  const LogLevel level = level_of_report();
  const MessageParts parts = parts_of(exception_text(error));
  const bool has_who = !parts.who.empty();
  log(level, fmt::format("ended with {}{}", parts.what, has_who ? "" : consequence));
  if (has_who) log(level, fmt::format("caused by {}{}", parts.who, consequence));
  if (!parts.to_do.empty()) log(level, "to do: " + parts.to_do);
}

// The default handler's message would repeat the launcher's report.
bool repeats_report([[maybe_unused]] std::terminate_handler handler) {
#ifdef __GLIBCXX__
  return launcher_has_report && level_of_report() == LogLevel::info &&
         handler == __gnu_cxx::__verbose_terminate_handler;
#else
  return false;
#endif
}

// `handler` usually prints the exception's type, so a derived Error is passed as a plain one.
void call_former(std::terminate_handler handler) {
  if (repeats_report(handler)) {
    if (const std::exception_ptr error = std::current_exception()) log_end(error, "");
    return;  // The runtime then aborts.
  }
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const Error& known) {
    if (typeid(known) == typeid(Error)) return handler();
    try {
      throw Error(known);
    } catch (const Error&) {
      return handler();
    }
  } catch (...) {  // Another library's exception.
  }
  handler();
}

// Called at the throw. The former handler ends the process, so other terminating threads wait for
// the report.
void report_and_call(std::terminate_handler former) {
  const Deadline deadline = in(std::chrono::seconds(1));
  if (telling == Telling::not_yet) tell(std::current_exception(), true);
  while (telling == Telling::now && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  call_former(former);
}

// init_process_group() installs a second handler if the program has replaced the first one, which
// the program's handler may call.
std::terminate_handler former_at_load = nullptr;
std::terminate_handler former_in_group = nullptr;
pid_t loaded_in = 0;

void on_terminate_since_load() {
  const bool is_child_without_group = places().pid == 0 && loaded_in != this_process();
  is_child_without_group ? former_at_load() : report_and_call(former_at_load);
}

void on_terminate_in_group() { report_and_call(former_in_group); }

// Also reports exceptions before init_process_group() if this process is a launcher's rank. Python
// has its own reports, and loads this library late.
bool watch_rank_since_load() {
  if (read_variable("TORCHELASTIC_ERROR_FILE") == nullptr) return false;
  if (::dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr) return false;
  loaded_in = this_process();
  former_at_load = std::get_terminate();
  std::set_terminate(on_terminate_since_load);
  return true;
}

[[maybe_unused]] const bool is_watched_since_load = watch_rank_since_load();

int exit_code_of(const std::exception_ptr& error) {
  const auto fault = fault_in(error);
  return fault ? exit_code_of(*fault) : 1;
}

}  // namespace

void report_uncaught_exceptions() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    if (std::get_terminate() == on_terminate_since_load) return;
    former_in_group = std::get_terminate();
    std::set_terminate(on_terminate_in_group);
  });
  Places& ours = places();
  const std::lock_guard lock(ours.mutex);
  if (ours.taken.empty()) ours.pid = this_process();
}

void send_exit_report_to(std::shared_ptr<const JobControlBlock> page, int slot) {
  report_uncaught_exceptions();
  Places& ours = places();
  const std::lock_guard lock(ours.mutex);
  std::erase_if(ours.taken, [](const Place& place) {
    return !place.is_of(this_process()) || place.phase() == JobControlBlock::Phase::finished;
  });
  ours.taken.push_back({std::move(page), slot});
  ours.pid = this_process();
}

void record_exception(std::exception_ptr error) noexcept { tell(error, false); }

void record_last_exception(std::string_view text, std::string_view traceback,
                           std::optional<Fault> fault) noexcept {
  const bool is_consequence = fault == Fault::peer_lost || fault == Fault::aborted;
  tell_once([&] {
    const ErrorReport report{.message = std::string(text),
                             .traceback = std::string(traceback),
                             .is_consequence = is_consequence};
    const bool told = !is_consequence && tell_peers(report.message, fault, true);
    launcher_has_report = (write_error_file(report) && is_rank()) || told;
  });
}

int record_main(const std::function<int()>& body) noexcept {
  try {
    return body();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    record_exception(error);
    const int code = exit_code_of(error);
    log_end(error, fmt::format("; exit code {}", code));
    return code;
  }
}

}  // namespace lockstep
