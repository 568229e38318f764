// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/record.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/exception_text.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/log.h"
#include "lockstep/base/this_process.h"
#include "lockstep/base/time.h"
#include "lockstep/job/error_file.h"
#include "lockstep/job/last_words.h"

namespace lockstep {
namespace {

// This process's slot in its job page. Never destroyed: static objects may throw at exit.
struct Place {
  std::atomic<pid_t> pid{0};  // Pid of the process that has the slot; its fork()ed children do not.
  std::mutex mutex;
  std::shared_ptr<const JobPage> page;
  int slot = 0;
};

Place& place() {
  static Place& ours = *new Place;
  return ours;
}

// A fork()ed child of a rank does not speak for the rank. A mutex that another thread of the rank
// held at the fork() is never free here.
bool is_child_of_rank() {
  Place& ours = place();
  const pid_t rank = ours.pid;
  if (rank == 0 || rank == this_process()) return false;
  const std::unique_lock lock(ours.mutex, std::try_to_lock);
  if (!lock) return true;
  return ours.page->pid(ours.slot) == rank && ours.page->phase(ours.slot) == JobPage::Phase::alive;
}

// `is_ending` tells peers that this process will not come back: nothing unwinds its stack.
void tell_peers(const std::string& text, std::optional<Fault> fault, bool is_ending) {
  Place& ours = place();
  const std::lock_guard lock(ours.mutex);
  if (!ours.page || ours.page->pid(ours.slot) != this_process())
    return;  // The slot belongs to
             // another process now.
  ours.page->say_last_words(ours.slot, text, fault);
  if (is_ending && ours.page->phase(ours.slot) == JobPage::Phase::alive)
    ours.page->abandon(ours.slot);
}

enum class Telling { not_yet, now, done };
std::atomic<Telling> telling{Telling::not_yet};

// Reports the first exception only. Peers come first: they are waiting.
void tell(const std::exception_ptr& error, bool is_ending) noexcept {
  Telling none = Telling::not_yet;
  if (!error || is_child_of_rank() || !telling.compare_exchange_strong(none, Telling::now)) return;
  try {
    ErrorReport report{.message = exception_text(error), .is_consequence = is_consequence(error)};
    if (!report.is_consequence) tell_peers(report.message, fault_in(error), is_ending);
    if (is_ending) report.call_stack = call_stack(2);  // Without this function and the handler.
    write_error_file(report);
  } catch (...) {  // No memory for it.
  }
  telling = Telling::done;
}

std::terminate_handler handler_before = nullptr;

// Called at the throw, with the whole stack still there. The former handler ends the process, so
// other threads that end too wait here until the report is complete.
void on_terminate() {
  const Deadline patience = in(std::chrono::seconds(1));
  if (telling == Telling::not_yet) tell(std::current_exception(), true);
  while (telling == Telling::now && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  handler_before();
}

int exit_code_of(const std::exception_ptr& error) {
  const auto fault = fault_in(error);
  return fault ? exit_code_of(*fault) : 1;
}

}  // namespace

void send_last_words_to(std::shared_ptr<const JobPage> page, int slot) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    handler_before = std::get_terminate();
    std::set_terminate(on_terminate);
  });
  Place& ours = place();
  const std::lock_guard lock(ours.mutex);
  ours.page = std::move(page);
  ours.slot = slot;
  ours.pid = this_process();
}

void record_exception(std::exception_ptr error) noexcept { tell(error, false); }

int record_main(const std::function<int()>& body) noexcept {
  try {
    return body();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    record_exception(error);
    const int code = exit_code_of(error);
    log(LogLevel::error, fmt::format("ended with {}; exit code {}", exception_text(error), code));
    return code;
  }
}

}  // namespace lockstep
