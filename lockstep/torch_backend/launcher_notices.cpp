// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/launcher_notices.h"

#include <atomic>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_control_block.h"

namespace lockstep::torch_backend {
namespace {

using namespace std::chrono_literals;

struct Slot {
  LaunchEnvironment who;
  JobControlBlock page;
  pid_t pid = this_process();

  std::string context() const { return "init_process_group on rank " + std::to_string(who.rank); }
};

std::atomic<const Slot*> taken{nullptr};

const Slot& our_slot() {
  constexpr std::chrono::seconds patience{30};
  static const Slot& ours = [&]() -> const Slot& {
    const LaunchEnvironment who = read_environment();
    JobControlBlock page = AgentConnection(who.agent_fd.value()).own_page(in(patience));
    const Slot& made = *new Slot{who, std::move(page)};  // Never destroyed: used at exit.
    taken = &made;
    return made;
  }();
  return ours;
}

// Null before our_slot(), and in a forked child.
const Slot* slot_if_taken() {
  const Slot* const slot = taken;
  return slot != nullptr && slot->pid == this_process() ? slot : nullptr;
}

std::string in_seconds(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

std::string without_prefix(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

void log_once(const Slot& slot, const Failure& failure, std::chrono::milliseconds since) {
  using Key = std::pair<int, std::optional<Fault>>;
  static std::mutex logging;
  static std::set<Key>& logged = *new std::set<Key>;  // Never destroyed.
  const std::lock_guard lock(logging);
  if (logged.emplace(failure.rank, failure.fault).second)
    log(LogLevel::info, failure_record(slot.page.job_id(), failure, since));
}

// With --on-failure continue, later groups lack the lost ranks.
bool others_continue() {
  const char* const value = read_variable("LOCKSTEP_ON_FAILURE");
  return value != nullptr && std::string_view(value) == "continue";
}

// An orderly exit is a failure only for processes that wait for the rank.
std::optional<Failure> loss_for(const Slot& slot) {
  if (others_continue()) return std::nullopt;
  if (auto failure = slot.page.failure()) return failure;
  auto end = slot.page.first_end();
  if (end) slot.page.note_break(slot.who.local_rank, *end);
  return end;
}

[[noreturn]] void throw_failure(const Slot& slot, const Failure& failure) {
  log_once(slot, failure, slot.page.since_failure());
  if (!failure.fault) throw Error(slot.context(), failure);
  throw Error(*failure.fault, slot.context() + ": " + describe(failure), failure.ranks);
}

// After a timeout, `why` follows the waiting time.
void tell(const Error& error, std::chrono::milliseconds timeout, const std::string& why = "") {
  const bool is_late = error.fault() == Fault::timeout;
  if ((!is_late && error.fault() != Fault::mismatch) || error.ranks().empty()) return;
  const Slot& slot = our_slot();
  Failure failure{.rank = error.ranks().front(), .detected_by = slot.who.rank};
  failure.fault = error.fault();
  failure.ranks = error.ranks();
  failure.call = "init_process_group";
  failure.what = is_late ? "within " + in_seconds(timeout) + "; rank " +
                               std::to_string(slot.who.rank) + " waited" + why
                         : without_prefix(bare_text(error), slot.context() + ": ");
  slot.page.note_break(slot.who.local_rank, failure);
  log_once(slot, failure, 0ms);
}

}  // namespace

void throw_if_launcher_lost_rank() {
  const Slot& slot = our_slot();
  slot.page.await_group(slot.who.local_rank);
  if (const auto failure = loss_for(slot)) throw_failure(slot, *failure);
}

void throw_if_job_failed() {
  const Slot& slot = our_slot();
  if (const auto failure = slot.page.failure()) throw_failure(slot, *failure);
}

void tell_launcher(const Error& error, std::chrono::milliseconds timeout) { tell(error, timeout); }

void throw_without_store(const std::string& place, std::chrono::milliseconds timeout,
                         const std::string& reason) {
  const std::string why = reason.empty() ? "" : "; the last try to reach it: " + reason;
  const Error error(Fault::timeout,
                    our_slot().context() + ": rank 0, which serves the store at " + place +
                        ", did not come within " + in_seconds(timeout) + why,
                    {0});
  tell(error, timeout, why);
  throw error;
}

void tell_launcher_of_new_try() {
  if (const Slot* const slot = slot_if_taken())
    slot->page.activity(slot->who.local_rank).resumed.fetch_add(1, std::memory_order_relaxed);
}

void tell_launcher_of_group() {
  if (const Slot* const slot = slot_if_taken()) slot->page.await_group(slot->who.local_rank, false);
}

void tell_launcher_of_end(std::string_view text, std::optional<Fault> fault) {
  if (const Slot* const slot = slot_if_taken())
    slot->page.write_exit_report(slot->who.local_rank, text, fault);
}

}  // namespace lockstep::torch_backend
