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

// This process's place in its job page. Never destroyed: static objects may throw at the end.
struct Place {
  std::atomic<pid_t> pid{0};  // Of the process that has it, and not of its fork()ed children.
  std::mutex mutex;
  std::shared_ptr<const JobPage> page;
  int slot = 0;
};

Place& place() {
  static Place& ours = *new Place;
  return ours;
}

// A fork()ed child of a rank says nothing in the rank's name. A mutex that a thread of the rank
// held at the fork() is never free here.
bool is_child_of_rank() {
  Place& ours = place();
  const pid_t rank = ours.pid;
  if (rank == 0 || rank == this_process()) return false;
  const std::unique_lock lock(ours.mutex, std::try_to_lock);
  if (!lock) return true;
  return ours.page->pid(ours.slot) == rank && ours.page->phase(ours.slot) == JobPage::Phase::alive;
}

// Peers of a process that nothing unwinds learn from `is_ending` that it will not come back.
void tell_peers(const std::string& text, std::optional<Fault> fault, bool is_ending) {
  Place& ours = place();
  const std::lock_guard lock(ours.mutex);
  if (!ours.page || ours.page->pid(ours.slot) != this_process()) return;  // Another one's by now.
  ours.page->say_last_words(ours.slot, text, fault);
  if (is_ending && ours.page->phase(ours.slot) == JobPage::Phase::alive)
    ours.page->abandon(ours.slot);
}

enum class Telling { not_yet, now, done };
std::atomic<Telling> telling{Telling::not_yet};

// The first exception counts. Peers first: it is they who are waiting.
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

// Called where the exception was thrown, with the whole stack still there. The handler before ours
// ends the process, so another thread that ends too waits until all is told.
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
