// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/thread_peers.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/memory.h"
#include "lockstep/base/time.h"

namespace lockstep::comm {
namespace {

// Each page takes memory when it is first used.
SharedMemory zeros(std::size_t bytes) {
  const std::size_t whole = whole_pages(bytes);
  void* const memory = whole < bytes ? MAP_FAILED
                                     : ::mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(Fault::system, fmt::format("{} bytes of memory could not be allocated", bytes));
  return {static_cast<std::byte*>(memory), [whole](std::byte* begin) { ::munmap(begin, whole); }};
}

std::vector<int> all_of(int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

ThreadTeam::ThreadTeam(int size) : activities_(static_cast<std::size_t>(size)) {}

void ThreadTeam::lose(int rank) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = Failure{.rank = rank, .host = "this process", .pid = ::getpid(), .left = true};
  note_latest(*failure_, activities_[static_cast<std::size_t>(rank)]);
}

bool ThreadTeam::has_lost_a_rank() const {
  const std::lock_guard lock(mutex_);
  return failure_ && activities_[static_cast<std::size_t>(failure_->rank)].aborted_at == 0;
}

void ThreadTeam::offer(const std::string& key, Offer offer) {
  const std::lock_guard lock(mutex_);
  offers_.insert_or_assign(key, std::move(offer));
  offered_.notify_all();
}

void ThreadTeam::withdraw(const std::string& key) {
  const std::lock_guard lock(mutex_);
  offers_.erase(key);
}

void ThreadTeam::deliver(const std::string& key, const SharedMemory& memory) {
  const std::lock_guard lock(mutex_);
  if (unwanted_.erase(key) == 0) offers_.insert_or_assign(key, Offer{memory});
}

void ThreadTeam::drop(const std::string& key) noexcept {
  const std::lock_guard lock(mutex_);
  if (offers_.erase(key) == 0) unwanted_.insert(key);
}

SharedMemory ThreadTeam::take(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(key);
  if (found == offers_.end()) return nullptr;
  SharedMemory memory = std::move(found->second.memory);
  offers_.erase(found);
  return memory;
}

void ThreadTeam::hand_out(const std::string& key, const SharedMemory& memory) {
  const std::lock_guard lock(mutex_);
  std::erase_if(handed_out_, [](const auto& entry) { return entry.second.expired(); });
  handed_out_[key] = memory;
}

SharedMemory ThreadTeam::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handed_out_.find(key); found != handed_out_.end())
    return found->second.lock();
  const auto found = offers_.find(key);
  if (found == offers_.end()) return nullptr;
  if (found->second.memory) return found->second.memory;
  throw Error(Fault::system,
              fmt::format("a peer could not share {}: {}", key, found->second.refusal));
}

ThreadPeers::ThreadPeers(std::shared_ptr<ThreadTeam> team, int rank)
    : ThreadPeers(team, std::make_shared<RegionTable>(rank, team->size()), rank,
                  all_of(team->size())) {}

ThreadPeers::ThreadPeers(std::shared_ptr<ThreadTeam> team, std::shared_ptr<RegionTable> regions,
                         int rank, std::vector<int> members)
    : team_(std::move(team)),
      regions_(std::move(regions)),
      rank_(rank),
      members_(std::move(members)) {}

SharedMemory ThreadPeers::offer(const std::string& key, std::size_t bytes,
                                std::size_t /*reserved*/) {
  SharedMemory memory = zeros(bytes);
  // A group of one rank uses little of its segment, which a huge page could hold.
  ::madvise(memory.get(), whole_pages(bytes), MADV_NOHUGEPAGE);
  if (size() > 1) team_->offer(key, {memory});
  return memory;
}

void ThreadPeers::refuse(const std::string& key, std::string_view reason) {
  team_->offer(key, {nullptr, std::string(reason)});
}

SharedMemory ThreadPeers::hand_out(const std::string& key, std::size_t bytes) {
  SharedMemory memory = zeros(bytes);
  team_->hand_out(key, memory);
  return memory;
}

SharedMemory ThreadPeers::fetch(int rank, const std::string& key, std::size_t, Deadline deadline,
                                const std::function<void()>& check) {
  while (true) {
    if (SharedMemory memory = team_->find(key)) return memory;
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout, fmt::format("{} has not handed over {}", describe(rank), key),
                  {rank});
    check();
    std::unique_lock lock(team_->mutex_);
    if (!team_->offers_.contains(key)) team_->offered_.wait_for(lock, wait_slice);
  }
}

SharedMemory ThreadPeers::deliver(int, const std::string& key, std::size_t bytes) {
  SharedMemory memory = zeros(bytes);
  team_->deliver(key, memory);
  return memory;
}

SharedMemory ThreadPeers::take(const std::string& key, std::size_t) { return team_->take(key); }

Activity& ThreadPeers::activity(int rank) {
  return team_->activities_[static_cast<std::size_t>(slot(rank))];
}

void ThreadPeers::throw_if_lost(std::string_view context) {
  const std::lock_guard lock(team_->mutex_);
  if (team_->failure_) throw Error(context, *team_->failure_);
}

std::string ThreadPeers::describe(int rank) {
  return fmt::format("rank {} (a thread), {}", rank, lockstep::describe(activity(rank)));
}

std::shared_ptr<Peers> ThreadPeers::among(const std::vector<int>& ranks) {
  std::vector<int> members;
  for (const int member : ranks) members.push_back(slot(member));
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  return std::shared_ptr<Peers>(
      new ThreadPeers(team_, regions_, static_cast<int>(own - ranks.begin()), std::move(members)));
}

}  // namespace lockstep::comm
