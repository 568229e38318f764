// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ranges>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/random_number.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

// Replaces the beginning of a long text by a hash.
std::string short_key(const std::string& text) {
  constexpr std::size_t end = 40;
  if (text.size() <= end + 16) return text;
  const std::string_view tail = std::string_view(text).substr(text.size() - end);
  return fmt::format("{:016x}{}", hash_of_elements(text), tail);
}

// Other ranks may have a group of the same name.
std::string segment_key(const Peers& peers, const std::string& group) {
  std::vector<int> slots;
  for (int rank = 0; rank < peers.size(); ++rank) slots.push_back(peers.slot(rank));
  const std::string list = fmt::format("{}", fmt::join(slots, ","));
  return fmt::format("{} of {}", short_key(group), short_key(list));
}

// While it exists, other ranks may fetch rank 0's offer.
class Offered {
 public:
  Offered(Peers& peers, std::string key) : peers_(peers), key_(std::move(key)) {}
  ~Offered() {
    if (peers_.rank() == 0) peers_.withdraw(key_);
  }
  Offered(const Offered&) = delete;
  Offered& operator=(const Offered&) = delete;

 private:
  Peers& peers_;
  const std::string key_;
};

// Blocks until all ranks have mapped `segment`, which rank 0 offers until then. Late ranks get no
// memory after a failure; the others read its reason there.
Barrier make_barrier(const std::shared_ptr<Peers>& peers, const GroupSegment& segment,
                     const std::string& group, std::chrono::milliseconds timeout,
                     std::function<void()> watch) {
  const Offered offered(*peers, segment_key(*peers, group));
  return {peers, segment, group, timeout, std::move(watch)};
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<Peers> peers, std::string group,
                       std::chrono::milliseconds timeout, std::function<void()> watch)
    : peers_(std::move(peers)),
      group_(std::move(group)),
      rank_(peers_->rank()),
      size_(peers_->size()),
      segment_(make_segment(timeout, watch)),
      peer_memory_(peers_, segment_, group_),
      barrier_(make_barrier(peers_, segment_, group_, timeout, std::move(watch))),
      key_(fmt::format("{} {:016x}", short_key(group_), segment_.common().number)),
      regions_(peers_, timeout,
               [this](int owner) {
                 const std::string context = fmt::format(
                     "mapping registered memory for group {} on rank {}", group_, number());
                 barrier_.throw_if_over(context);
                 barrier_.report_stalled({owner}, context);
               }),
      reduction_(size_),
      staging_(segment_, barrier_, reduction_, rank_, size_),
      in_place_(segment_, barrier_, regions_, peer_memory_, reduction_, rank_, size_),
      pipes_(peers_, segment_, barrier_, group_, key_) {}

// A failure is an Error on all ranks.
GroupSegment ShmBackend::make_segment(std::chrono::milliseconds timeout,
                                      const std::function<void()>& watch) const {
  require(size_ <= GroupSegment::most_ranks, [&] {
    return fmt::format("{} ranks on one host: the limit is {}", size_, GroupSegment::most_ranks);
  });
  const std::size_t bytes = GroupSegment::bytes_for(size_);
  const Clock::time_point begin = Clock::now();
  const Deadline deadline = in(timeout);
  const auto abort = [&] {
    watch();
    peers_->throw_if_lost("making group " + group_);
    if (Clock::now() < deadline) return;
    throw Error(Fault::timeout,
                fmt::format("making group {} on rank {}: its first rank did not come in time "
                            "(after a timeout of {:.1f} s): {}",
                            group_, number(), seconds_since(begin), peers_->describe(0)),
                {peers_->number(0)});
  };
  const std::string key = segment_key(*peers_, group_);
  if (rank_ != 0) return {peers_->fetch(0, key, bytes, no_deadline, abort), size_};
  try {
    GroupSegment made(peers_->offer(key, bytes, GroupSegment::head_bytes(size_)), size_);
    made.common().number = random_number();
    return made;
  } catch (const Error& error) {
    peers_->refuse(key, bare_text(error));
    throw;
  }
}

// Ranks with different calls may compute this differently, but stop in enter().
void ShmBackend::enter(const Collective& collective) {
  const Operation operation = collective.signature.operation;
  RankBlock::Entry& mine = barrier_.next_entry();
  mine.signature = collective.signature;
  if (collective.only_says) {
    mine.input = mine.output = 0;
    return barrier_.enter(collective);
  }
  // Copying small data is faster, except in all_reduce.
  const bool copies = operation != Operation::all_reduce && Staging::is_small(collective, size_);
  const bool reads = !copies && can_read_inputs(operation);
  const bool writes = !copies && can_write_outputs(operation);
  mine.input = reads ? regions_.locate(collective.input) : 0;
  mine.output = writes ? regions_.locate(collective.output) : 0;
  if (mine.input == 0 && mine.output == 0 &&
      reads_outside(collective, size_, barrier_.is_crowded()) && peer_memory_.is_readable()) {
    if (operation == Operation::broadcast || operation == Operation::all_reduce)
      mine.output = Regions::outside(collective.output);
    else
      mine.input = Regions::outside(collective.input);
  }
  staging_.begin(collective);
  if (mine.input == 0 && mine.output == 0) staging_.put_first(collective);
  barrier_.enter(collective);
}

std::vector<std::string> ShmBackend::labels(const Collective& collective) {
  copy_text(segment_.block(rank_).reason, collective.label);
  barrier_.step(collective);
  std::vector<std::string> all;
  for (int peer = 0; peer < size_; ++peer) all.emplace_back(segment_.block(peer).reason);
  return all;
}

void ShmBackend::run(const Collective& collective) {
  const bool has_result = size_ == 1 && collective.input.data == nullptr;
  if (has_result) return;
  if (in_place_.is_possible()) {
    if (!in_place_.is_outside(rank_)) return run_in_place(collective);
    if (run_outside(collective)) return;
    if (collective.signature.operation == Operation::all_reduce)
      return staging_.finish_all_reduce(collective);
  }
  run_staged(collective);
}

void ShmBackend::run_in_place(const Collective& collective) {
  regions_.set_timeout(collective.timeout);
  in_place_.run(collective);
  barrier_.step(collective);
}

// False, on all ranks, if one could not read its peers' memory. Inputs are unchanged, except that
// all_reduce has reduced the beginning of each rank's slice. docs/algorithms.md explains why a
// failing rank sets could_not_read before it returns.
bool ShmBackend::run_outside(const Collective& collective) {
  std::atomic<std::uint32_t>& could_not_read = segment_.block(rank_).could_not_read;
  try {
    const bool has_read = in_place_.run(collective);
    could_not_read.store(has_read ? 0 : 1);
    if (!has_read) barrier_.throw_if_over(collective);
    barrier_.step(collective);  // Orders the reads of peers' memory before those below.
  } catch (...) {
    could_not_read.store(1);
    // A peer that has read later writes must also see the 1. The store alone does not order later
    // stores after itself.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    throw;
  }
  const auto has_failed = [&](int peer) { return segment_.block(peer).could_not_read.load() != 0; };
  if (std::ranges::none_of(std::views::iota(0, size_), has_failed)) return true;
  peer_memory_.stop();
  return false;
}

void ShmBackend::run_staged(const Collective& collective) {
  const auto ranks = std::views::iota(0, size_);
  const auto has_put = [&](int peer) {
    return barrier_.entry(peer).input == 0 && barrier_.entry(peer).output == 0;
  };
  const auto is_outside = [&](int peer) { return in_place_.is_outside(peer); };
  if (!std::ranges::all_of(ranks, has_put)) {  // Peers can reach some memory, but not all.
    // A rank that has staged its data cannot read its peers, or its address has a tag. The group
    // then stops reading, to avoid starting over in each call.
    if (std::ranges::any_of(ranks, has_put) && std::ranges::any_of(ranks, is_outside))
      peer_memory_.stop();
    if (!has_put(rank_)) staging_.put_first(collective);
    barrier_.step(collective);
  }
  staging_.run(collective);
}

std::unique_ptr<Backend> ShmBackend::among(const std::vector<int>& ranks, const std::string& group,
                                           std::chrono::milliseconds timeout,
                                           const std::function<void()>& watch) {
  const auto look = watch_the_making(pipes_, group_, group, ranks, watch);
  try {
    return std::make_unique<ShmBackend>(peers_->among(ranks), group, timeout, look);
  } catch (const GroupAborted& error) {
    throw_for_the_making(error, look);
  }
}

Backend::Allocation ShmBackend::allocate(const Collective& collective) {
  const std::size_t bytes = collective.signature.count;
  const bool shared = collective.signature.operation == Operation::allocate_shared;
  const std::size_t whole = Regions::bytes_for(bytes, shared ? 1 : size_);
  const std::string key = fmt::format("{} memory {}", key_, ++allocations_);
  if (rank_ == 0 && !shared) segment_.block(0).region = peers_->regions().next_number();
  SharedMemory memory;
  std::string failure;
  // First the maker, then all ranks that map it, report success or failure.
  const auto attempt = [&](auto action) {
    try {
      memory = action();
    } catch (const Error& error) {
      if (error.fault() != Fault::system) throw;
      failure = bare_text(error);
    }
    return fail_together(collective, failure);
  };
  const Offered offered(*peers_, key);
  std::string refusal =
      attempt([&] { return rank_ == 0 ? peers_->offer(key, whole, whole) : SharedMemory(); });
  if (refusal.empty() && size_ > 1)
    refusal = attempt([&] {
      if (rank_ == 0) return memory;
      return peers_->fetch(0, key, whole, in(collective.timeout),
                           [&] { barrier_.throw_if_over("allocate"); });
    });
  if (!refusal.empty()) return {{}, refusal};
  // The group's segment is mapped on first access: for 256 ranks, mapping it takes a second.
  map_all_pages(memory.get(), whole);
  if (shared) return {RegisteredMemory(memory, memory.get(), bytes), {}};
  return {regions_.add_common(segment_.block(0).region, std::move(memory), bytes), {}};
}

// The reason of the first rank that cannot continue, if any.
std::string ShmBackend::fail_together(const Collective& collective, const std::string& mine) {
  RankBlock& block = segment_.block(rank_);
  copy_text(block.reason, cut_text(mine, sizeof block.reason - 1));
  block.refused = mine.empty() ? 0 : 1;
  barrier_.step(collective);
  std::string reason;
  for (int peer = 0; peer < size_ && reason.empty(); ++peer)
    if (segment_.block(peer).refused != 0)
      reason = fmt::format("rank {}: {}", peers_->number(peer), segment_.block(peer).reason);
  barrier_.step(collective);  // Before a rank's block is written again.
  return reason;
}

}  // namespace lockstep::comm
