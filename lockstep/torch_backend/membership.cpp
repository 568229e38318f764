// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/membership.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/time.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/job/environment.h"
#include "lockstep/tensor/torch_store.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/gil.h"
#include "lockstep/torch_backend/interrupts.h"
#include "lockstep/torch_backend/launcher_notices.h"
#include "lockstep/torch_backend/registered_allocator.h"

namespace lockstep::torch_backend {
namespace {

// In the order of joining.
struct Joined {
  std::mutex mutex;
  std::vector<std::weak_ptr<Membership>> all;
};

Joined& joined() {
  static Joined& ours = *new Joined;  // Never destroyed: objects may leave at exit.
  return ours;
}

std::atomic<bool> process_fails{false};
std::string& text_of_failure = *new std::string;  // Set before that; never destroyed.

std::optional<LaunchEnvironment> said_by_launcher() {
  try {
    return read_environment();
  } catch (const Error&) {  // No launcher, or it does not answer.
    return std::nullopt;
  }
}

// The store shows which ranks share a host.
LaunchEnvironment environment_of(const Place& place) {
  LaunchEnvironment who;
  who.launcher = "torch.distributed";
  who.rank = who.local_rank = place.rank;
  who.world_size = place.size;
  who.local_world_size = 0;  // Unknown.
  const auto launched = said_by_launcher();
  if (!launched) return who;
  who.job_id = launched->job_id;
  if (!place.is_job || launched->rank != place.rank || launched->world_size != place.size)
    return who;  // Differs from this process's place in the agent's job.
  who.agent_fd = launched->agent_fd;
  who.attempt = launched->attempt;
  return who;
}

// Without the store: the launcher may soon report an exited rank.
void await_notice(const std::function<void()>& look) {
  constexpr std::chrono::milliseconds pause{10};
  for (const Deadline last = in(std::chrono::seconds(1)); Clock::now() < last;
       std::this_thread::sleep_for(pause))
    look();
}

[[noreturn]] void throw_lost_store() {
  const char* const by_torchrun = read_variable("TORCHELASTIC_USE_AGENT_STORE");
  const bool is_agents = by_torchrun != nullptr && std::string_view(by_torchrun) == "True";
  throw Error(Fault::peer_lost, std::string("PyTorch's store cannot be reached any more: ") +
                                    (is_agents ? "torchrun's agent, which serves it,"
                                               : "the process that serves it, by default rank 0,") +
                                    " has ended or is cut off");
}

ProcessGroup join_world(const Place& place) {
  const LaunchEnvironment who = environment_of(place);
  // Engines rendezvous in the store later, in their first calls.
  const auto is_joining = std::make_shared<std::atomic<bool>>(true);
  const auto look = [is_joining, has_agent = who.agent_fd.has_value()] {
    throw_if_interrupted();
    if (has_agent) *is_joining ? throw_if_launcher_lost_rank() : throw_if_job_failed();
  };
  const auto lost = [look, has_agent = who.agent_fd.has_value()] {
    if (has_agent) await_notice(look);
    throw_lost_store();
  };
  try {
    ProcessGroup world = init_process_group({.timeout = place.timeout,
                                             .name = place.is_job ? "world" : place.name,
                                             .environment = who,
                                             .store = adapt(place.store, look, lost),
                                             .backend = place.transport,
                                             .interface = place.interface});
    *is_joining = false;
    return world;
  } catch (const Error& error) {
    if (who.agent_fd) tell_launcher(error, place.timeout);
    throw;
  }
}

std::vector<std::shared_ptr<Membership>> all_joined() {
  Joined& groups = joined();
  const std::lock_guard lock(groups.mutex);
  std::vector<std::shared_ptr<Membership>> alive;
  for (const auto& weak : groups.all)
    if (auto membership = weak.lock()) alive.push_back(std::move(membership));
  return alive;
}

std::optional<int> rank_in(const Place& group, std::int64_t global) {
  if (group.is_job)
    return global < group.size ? std::optional(static_cast<int>(global)) : std::nullopt;
  const auto found = std::ranges::find(group.global_ranks, global);
  if (found == group.global_ranks.end()) return std::nullopt;
  return static_cast<int>(found - group.global_ranks.begin());
}

// Empty if one is not a member.
std::vector<int> ranks_in(const Place& group, const Place& place) {
  std::vector<int> ranks;
  for (const std::int64_t global : place.global_ranks) {
    const auto rank = rank_in(group, global);
    if (!rank) return {};
    ranks.push_back(*rank);
  }
  return ranks;
}

void leave_in_order(ProcessGroup& group) {
  try {
    leave_process_group(group);
  } catch (const Error&) {  // A forked child, or the parent group was left.
  }
}

// Other hosts must still detect this process's exit.
void end_without_leaving(const ProcessGroup& group) {
  try {
    report_cause_of_exit(group);
  } catch (const Error&) {  // As above.
  }
}

// The oldest world with all ranks: all members choose alike.
std::optional<ProcessGroup> join_part_of_world(const Place& place) {
  if (!place.interface.empty() || !place.transport.empty()) return std::nullopt;
  for (const auto& world : all_joined()) {
    if (!world->is_world()) continue;
    const auto ranks = ranks_in(world->place(), place);
    if (ranks.empty()) continue;
    const Interruptible interruptible(*world);
    return world->group().group_of(ranks, place.name, {.timeout = place.timeout});
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<Membership> Membership::join(const Place& place) {
  tell_launcher_of_new_try();
  auto part = join_part_of_world(place);
  const bool is_world = !part;
  ProcessGroup group = part ? *std::move(part) : join_world(place);
  tell_launcher_of_group();
  std::shared_ptr<Membership> made(new Membership(place, std::move(group), is_world));
  Joined& groups = joined();
  const std::lock_guard lock(groups.mutex);
  std::erase_if(groups.all, [](const auto& weak) { return weak.expired(); });
  groups.all.push_back(made);
  if (is_world) offer_memory(made);
  return made;
}

Membership::Membership(Place place, ProcessGroup group, bool is_world)
    : place_(std::move(place)),
      group_(std::move(group)),
      is_world_(is_world),
      timeout_(place_.timeout) {}

// Tensors use the first job's registered memory until this process leaves it.
void Membership::offer_memory(const std::shared_ptr<Membership>& ours) {
  RegisteredAllocator& allocator = RegisteredAllocator::instance();
  if (allocator.is_open()) return;
  ours->gives_memory_ = true;
  allocator.open([group = ours->group()](std::size_t bytes) { return group.allocate_local(bytes); },
                 rethrow_in_python);
}

Membership::~Membership() {
  const WithoutGil without_gil;  // The group's threads may need the GIL.
  leave();
  const ProcessGroup last = std::move(group_);
}

std::chrono::milliseconds Membership::timeout_of(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout ? timeout_.load() : asked;
}

void Membership::note(const Error& error) {
  switch (error.fault()) {
    case Fault::misuse:
    case Fault::unsupported:
      return;  // The group is still usable.
    case Fault::timeout:
      error_ = c10d::ErrorType::TIMEOUT;
      return;
    case Fault::peer_lost:
      error_ = c10d::ErrorType::REMOTE_ERROR;
      return;
    default:
      error_ = c10d::ErrorType::COMM_ERROR;
  }
}

void Membership::abort(std::string_view reason) {
  if (!left_) group_.abort(reason);
}

// False if this process has left the group, or exits with a failure.
bool Membership::end_calls() {
  if (left_.exchange(true)) return false;
  // Ends a running call. Otherwise, other ranks report this process after its exit.
  const bool fails = process_fails;
  if (fails && !calls_->is_idle()) group_.abort(text_of_failure);
  calls_->end();
  if (gives_memory_) RegisteredAllocator::instance().close();
  // A traceback may keep the group until the process has ended.
  if (fails) end_without_leaving(group_);
  return !fails;
}

void Membership::leave() {
  const WithoutGil without_gil;  // Callbacks and ending threads need the GIL.
  if (end_calls()) leave_in_order(group_);
}

void Membership::fail_process(const std::string& text) {
  if (process_fails) return;
  text_of_failure = text;
  process_fails = true;
}

// A forked child may not use the group; another thread may leave it meanwhile.
void Membership::count_step() {
  for (const auto& membership : all_joined()) {
    if (!membership->is_world()) continue;
    try {
      lockstep::count_step(membership->group());
    } catch (const Error&) {
    }
    return;
  }
}

void Membership::leave_all() {
  auto all = all_joined();
  for (auto membership = all.rbegin(); membership != all.rend(); ++membership)
    (*membership)->leave();
  expect_end_of_python();
}

// on_exit() handlers get the exit code; those of atexit() and Python do not.
void Membership::leave_all_at_exit() {
  // Never destroyed: the groups stay as they are.
  static auto& kept = *new std::vector<ProcessGroup>;
  auto all = all_joined();
  for (auto membership = all.rbegin(); membership != all.rend(); ++membership)
    if ((*membership)->end_calls()) kept.push_back((*membership)->group_);
  expect_end_of_python();
  const auto leave = [](int exit_code, void*) {
    try {
      for (ProcessGroup& group : kept)
        exit_code == 0 ? leave_in_order(group) : end_without_leaving(group);
    } catch (const std::exception& error) {  // Would otherwise cause SIGABRT.
      log(LogLevel::warning, std::string("a group was not left in order: ") + error.what());
    }
  };
  if (::on_exit(leave, nullptr) != 0) leave(0, nullptr);
}

}  // namespace lockstep::torch_backend
