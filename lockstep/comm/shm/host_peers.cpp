// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/host_peers.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

// After some missed heartbeats, the process state shows a stopped process. Only many show that the
// kernel keeps it from running for another reason.
constexpr std::chrono::milliseconds missed_some{500};
constexpr std::chrono::seconds missed_many{5};

std::vector<int> up_to(std::size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

struct Mapped {
  SharedMapping mapping;
  std::shared_ptr<const void> handed_out = {};
};

SharedMemory in_shared_hands(SharedMapping mapping,
                             std::shared_ptr<const void> handed_out = nullptr) {
  mapping.close_descriptor();
  auto owner = std::make_shared<Mapped>(std::move(mapping), std::move(handed_out));
  return {owner, owner->mapping.data()};
}

SharedMemory attach(const std::string& key, std::size_t bytes, FileDescriptor memory) {
  SharedMapping mapping = SharedMapping::attach(std::move(memory));
  if (mapping.bytes() < bytes) throw Error(Fault::corrupt, key + ": shorter than it should be");
  return in_shared_hands(std::move(mapping));
}

}  // namespace

HostPeers::HostPeers(std::shared_ptr<HostSession> session)
    : HostPeers(session, std::make_shared<RegionTable>(session->rank(), session->size()),
                up_to(static_cast<std::size_t>(session->size())),
                up_to(static_cast<std::size_t>(session->size())), /*is_part=*/false) {}

HostPeers::HostPeers(std::shared_ptr<HostSession> session, std::shared_ptr<RegionTable> regions,
                     std::vector<int> slots, std::vector<int> numbers, bool is_part)
    : session_(std::move(session)),
      regions_(std::move(regions)),
      slots_(std::move(slots)),
      numbers_(std::move(numbers)),
      is_part_(is_part),
      pulses_(slots_.size()) {
  const auto mine = std::find(slots_.begin(), slots_.end(), session_->rank());
  rank_ = static_cast<int>(mine - slots_.begin());
}

SharedMemory HostPeers::offer(const std::string& key, std::size_t bytes, std::size_t reserved) {
  SharedMapping mapping = SharedMapping::create(key, bytes, reserved);
  if (size() > 1) session_->offer(key, mapping.descriptor());
  return in_shared_hands(std::move(mapping));
}

SharedMemory HostPeers::hand_out(const std::string& key, std::size_t bytes) {
  SharedMapping mapping = SharedMapping::create(key, bytes);
  auto handed_out = session_->hand_out(key, mapping.descriptor());
  return in_shared_hands(std::move(mapping), std::move(handed_out));
}

SharedMemory HostPeers::fetch(int rank, const std::string& key, std::size_t bytes,
                              Deadline deadline, const std::function<void()>& check) {
  if (FileDescriptor memory = session_->fetch(slot(rank), key, deadline, check))
    return attach(key, bytes, std::move(memory));
  const auto stall = stall_of(rank);
  throw Error(Fault::timeout,
              fmt::format("{} has not handed over {}{}{}", describe(rank), key,
                          stall ? "; it is " : "", stall.value_or("")),
              {number(rank)});
}

SharedMemory HostPeers::deliver(int rank, const std::string& key, std::size_t bytes) {
  SharedMapping mapping = SharedMapping::create(key, bytes);
  session_->deliver(slot(rank), key, mapping.descriptor());
  return in_shared_hands(std::move(mapping));
}

SharedMemory HostPeers::take(const std::string& key, std::size_t bytes) {
  FileDescriptor memory = session_->take(key);
  return memory ? attach(key, bytes, std::move(memory)) : nullptr;
}

// Each system call also reads the mark: the process is not another with this pid, or after
// exec().
bool HostPeers::read(int rank, const Mark& mark, std::byte* to, std::uint64_t from,
                     std::size_t bytes) {
  const pid_t pid = session_->page().pid(slot(rank));
  while (bytes > 0) {
    std::uint64_t number = 0;
    const iovec here[] = {{&number, sizeof number}, {to, bytes}};
    // NOLINTBEGIN(performance-no-int-to-ptr): addresses of another process.
    const iovec there[] = {{reinterpret_cast<void*>(mark.address), sizeof number},
                           {reinterpret_cast<void*>(from), bytes}};
    // NOLINTEND(performance-no-int-to-ptr)
    const ssize_t done = ::process_vm_readv(pid, here, 2, there, 2, 0);
    if (done < 0 && errno == EINTR) continue;
    const auto read = static_cast<std::size_t>(std::max<ssize_t>(done, 0));
    if (read <= sizeof number || number != mark.number) return false;
    to += read - sizeof number;
    from += read - sizeof number;
    bytes -= read - sizeof number;
  }
  return true;
}

std::optional<Failure> HostPeers::why_left(int rank) {
  const Failure own{.rank = slot(rank), .left = true};
  const Failure cause = session_->page().cause_of(own.rank, own);
  return cause.left && cause.rank != own.rank ? std::optional(cause) : std::nullopt;
}

std::string HostPeers::describe(int rank) {
  const JobControlBlock& page = session_->page();
  if (page.pid(slot(rank)) == 0)
    return fmt::format("rank {}, which has not called init_process_group()", slot(rank));
  const std::string world =
      slot(rank) == number(rank) ? "" : fmt::format(", rank {} of the job", slot(rank));
  const std::string who =
      fmt::format("rank {} (pid {}{})", number(rank), page.pid(slot(rank)), world);
  if (page.phase(slot(rank)) != JobControlBlock::Phase::alive)
    return who + ", which is not in the job";
  return fmt::format("{}, {}", who, lockstep::describe(activity(rank)));
}

std::optional<std::string> HostPeers::stall_of(int rank) {
  const std::lock_guard lock(mutex_);
  Pulse& pulse = pulses_[static_cast<std::size_t>(rank)];
  const auto now = Clock::now();
  const std::uint64_t heartbeat = activity(rank).heartbeat.load(std::memory_order_relaxed);
  // If the last check was long ago, this process may have been stopped.
  const bool fresh = now - pulse.looked > missed_some;
  pulse.looked = now;
  if (fresh || heartbeat != pulse.heartbeat) {
    pulse.heartbeat = heartbeat;
    pulse.changed = now;
    return std::nullopt;
  }
  const auto still = now - pulse.changed;
  if (still < missed_some || session_->page().phase(slot(rank)) != JobControlBlock::Phase::alive)
    return std::nullopt;
  const char state = session_->page().process_state(slot(rank));
  if (state == 'T' || state == 't')
    return fmt::format("STOPPED ({}): kill -CONT lets it go on", state);
  if (still < missed_many) return std::nullopt;
  return fmt::format("not running (state {})", state);
}

std::shared_ptr<Peers> HostPeers::among(const std::vector<int>& ranks) {
  return make(ranks, up_to(ranks.size()), /*is_part=*/false);
}

std::shared_ptr<Peers> HostPeers::among(const std::vector<int>& ranks, std::vector<int> numbers) {
  return make(ranks, std::move(numbers), /*is_part=*/true);
}

std::shared_ptr<Peers> HostPeers::make(const std::vector<int>& ranks, std::vector<int> numbers,
                                       bool is_part) const {
  std::vector<int> slots;
  for (const int member : ranks) slots.push_back(slot(member));
  return std::shared_ptr<Peers>(
      new HostPeers(session_, regions_, std::move(slots), std::move(numbers), is_part));
}

}  // namespace lockstep::comm
