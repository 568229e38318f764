// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/futex.h"
#include "lockstep/comm/reduce/reduce.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds sleep_slice{20};
constexpr std::size_t page = 4096;
constexpr std::size_t cache_line = 64;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct Slice {
  std::size_t begin;
  std::size_t end;
};

// The elements that `rank` of `ranks` reduces: whole cache lines, so that no two ranks write one.
Slice slice_of(std::size_t count, std::size_t element, int rank, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t each = round_up((count + n - 1) / n, cache_line / element);
  const std::size_t begin = std::min(count, static_cast<std::size_t>(rank) * each);
  return {begin, std::min(count, begin + each)};
}

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

}  // namespace

struct ShmBackend::Region {
  Region(SharedMapping made, std::uint64_t number, std::size_t part)
      : mapping(std::move(made)), id(number), stride(part) {}

  std::byte* part(int rank) const {
    return mapping.data() + static_cast<std::size_t>(rank) * stride;
  }

  SharedMapping mapping;
  std::uint64_t id;    // Regions are numbered alike on all ranks, from 1.
  std::size_t stride;  // Bytes from one rank's part to the next.
};

struct ShmBackend::Whereabout {
  std::shared_ptr<Region> region;  // Null for memory that is not registered.
  std::size_t offset = 0;          // Into this rank's part.

  // What ranks compare: equal on two ranks only for the same place in the same region.
  std::uint64_t location() const { return region ? region->id << 40 | offset : 0; }
  std::byte* on(int rank) const { return region->part(rank) + offset; }
};

ShmBackend::ShmBackend(std::shared_ptr<HostSession> session, std::string group, Deadline deadline)
    : session_(std::move(session)),
      group_(std::move(group)),
      segment_(share(group_, GroupSegment::bytes_for(size()), deadline), size()),
      parts_(static_cast<std::size_t>(size())) {
  const Call setup{.signature = {}, .sequence = 0, .deadline = deadline};
  ::sched_getaffinity(0, sizeof(cpu_set_t), &segment_.lane(rank()).cores);
  step(setup);
  spins_ = enough_cores() ? 2000 : 0;
}

// One rank makes the memory, the others get it. A failure is an Error on all of them.
SharedMapping ShmBackend::share(const std::string& key, std::size_t bytes, Deadline deadline) {
  const int others = size() - 1;
  if (rank() == 0) {
    try {
      SharedMapping mapping = SharedMapping::create(key, bytes);
      session_->link().offer(key, others, mapping.descriptor());
      mapping.close_descriptor();
      return mapping;
    } catch (const Error& error) {
      session_->link().refuse(key, others, error.what());
      throw;
    }
  }
  SharedMapping mapping = SharedMapping::attach(
      session_->link().obtain(key, deadline, [&] { session_->throw_if_peer_lost(key); }));
  mapping.close_descriptor();
  if (mapping.bytes() < bytes) throw Error(Fault::corrupt, key + ": shorter than it should be");
  return mapping;
}

bool ShmBackend::enough_cores() const {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int peer = 0; peer < size(); ++peer) CPU_OR(&all, &all, &segment_.lane(peer).cores);
  return CPU_COUNT(&all) >= size();
}

bool ShmBackend::reduces(DType dtype, ReduceOp op) const {
  return reduce_function(dtype, op) != nullptr;
}

void ShmBackend::all_reduce(const Buffer& data, const Call& call) {
  const Whereabout place = locate(data);
  const Path path = enter(call, place.location());
  if (size() == 1) return;
  if (path == Path::registered) {
    reduce_slice([&](int peer) { return place.on(peer); }, data.count, call);
    step(call);
    return;
  }
  std::byte* const mine = segment_.staging(rank());
  const std::size_t element = size_of(data.dtype);
  const std::size_t chunk = GroupSegment::staging_bytes / element;
  for (std::size_t begin = 0; begin < data.count; begin += chunk) {
    const std::size_t count = std::min(chunk, data.count - begin);
    std::memcpy(mine, bytes_of(data) + begin * element, count * element);
    step(call);
    reduce_slice([&](int peer) { return segment_.staging(peer); }, count, call);
    step(call);
    std::memcpy(bytes_of(data) + begin * element, mine, count * element);
  }
}

// Reduces this rank's slice of everybody's part_of(rank) and writes it into all of them.
template <class PartOf>
void ShmBackend::reduce_slice(PartOf part_of, std::size_t count, const Call& call) {
  const DType dtype = call.signature.dtype;
  const Slice slice = slice_of(count, size_of(dtype), rank(), size());
  if (slice.begin == slice.end) return;
  for (int peer = 0; peer < size(); ++peer)
    parts_[static_cast<std::size_t>(peer)] = part_of(peer) + slice.begin * size_of(dtype);
  reduce_function(dtype, call.signature.op)(parts_.data(), size(), parts_.data(), size(),
                                            slice.end - slice.begin);
}

void ShmBackend::broadcast(const Buffer& data, const Call& call) {
  const Whereabout place = locate(data);
  const int root = call.signature.root;
  if (enter(call, place.location()) == Path::registered) {
    if (rank() != root) std::memcpy(data.data, place.on(root), data.bytes());
    step(call);
    return;
  }
  const std::byte* source = segment_.staging(root);
  relay(
      data.bytes(), call,
      [&](std::byte* to, std::size_t begin, std::size_t bytes) {
        if (rank() == root) std::memcpy(to, bytes_of(data) + begin, bytes);
      },
      [&](std::size_t half, std::size_t begin, std::size_t bytes) {
        if (rank() != root) std::memcpy(bytes_of(data) + begin, source + half, bytes);
      });
}

void ShmBackend::all_gather(const Buffer& input, const Buffer& output, const Call& call) {
  const Whereabout place = locate(output);
  const std::size_t bytes = input.bytes();
  const auto begin_of = [&](int peer) { return static_cast<std::size_t>(peer) * bytes; };
  if (enter(call, place.location()) == Path::registered) {
    for (int peer = 0; peer < size() && bytes > 0; ++peer)
      std::memmove(place.on(peer) + begin_of(rank()), input.data, bytes);
    step(call);
    return;
  }
  relay(
      bytes, call,
      [&](std::byte* to, std::size_t begin, std::size_t count) {
        std::memcpy(to, bytes_of(input) + begin, count);
      },
      [&](std::size_t half, std::size_t begin, std::size_t count) {
        for (int peer = 0; peer < size(); ++peer)
          std::memcpy(bytes_of(output) + begin_of(peer) + begin, segment_.staging(peer) + half,
                      count);
      });
}

void ShmBackend::barrier(const Call& call) { enter(call, 0); }

RegisteredMemory ShmBackend::allocate(const Call& call) {
  enter(call, 0);
  std::erase_if(regions_, [](const auto& entry) { return entry.second.expired(); });
  const std::size_t bytes = call.signature.count;
  const std::size_t stride = round_up(std::max<std::size_t>(bytes, 1), page);
  const std::string key = fmt::format("{} memory {}", group_, ++regions_made_);
  auto region = std::make_shared<Region>(
      share(key, stride * static_cast<std::size_t>(size()), call.deadline), regions_made_, stride);
  step(call);  // From here on every rank has it.
  std::byte* mine = region->part(rank());
  regions_[mine] = region;
  return RegisteredMemory(region, mine, bytes);
}

ShmBackend::Whereabout ShmBackend::locate(const Buffer& buffer) const {
  const std::byte* begin = bytes_of(buffer);
  const auto after = regions_.upper_bound(begin);
  if (after == regions_.begin()) return {};
  const auto& [part, weak] = *std::prev(after);
  auto region = weak.lock();
  if (!region || begin + buffer.bytes() > part + region->stride) return {};
  return {std::move(region), static_cast<std::size_t>(begin - part)};
}

// Meets all other ranks at the begin of an operation and learns what they came for.
ShmBackend::Path ShmBackend::enter(const Call& call, std::uint64_t location) {
  const auto sequence = static_cast<std::uint32_t>(call.sequence);
  const std::size_t turn = sequence & 1;
  Lane::Entry& mine = segment_.lane(rank()).entry[turn];
  mine.signature = call.signature;
  mine.location = location;
  raise(mine.arrived, sequence);

  bool same = true;
  bool same_place = location != 0;
  for (int peer = 0; peer < size(); ++peer) {
    Lane::Entry& theirs = segment_.lane(peer).entry[turn];
    if (peer != rank()) await(theirs.arrived, sequence, peer, call);
    same = same && theirs.signature == call.signature;
    same_place = same_place && theirs.location == location;
  }
  if (!same) compare_signatures(call);
  return same_place ? Path::registered : Path::staged;
}

// All ranks see the same signatures, so all of them name the same two.
void ShmBackend::compare_signatures(const Call& call) const {
  const std::size_t turn = call.sequence & 1;
  const Signature& first = segment_.lane(0).entry[turn].signature;
  for (int peer = 1; peer < size(); ++peer) {
    const Signature& theirs = segment_.lane(peer).entry[turn].signature;
    if (theirs == first) continue;
    throw Error(Fault::mismatch,
                fmt::format("operation #{} of group {}: rank 0 called {}, rank {} called {}",
                            call.sequence, group_, describe(first), peer, describe(theirs)));
  }
}

void ShmBackend::step(const Call& call) {
  raise(segment_.lane(rank()).step, ++steps_);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) await(segment_.lane(peer).step, steps_, peer, call);
}

void ShmBackend::raise(Flag& flag, std::uint32_t value) const {
  flag.value.store(value);  // Ordered before the load, or a rank about to sleep could be missed.
  if (flag.sleepers.load() != 0) futex_wake_all(flag.value);
}

void ShmBackend::await(Flag& flag, std::uint32_t target, int peer, const Call& call) const {
  for (int i = 0; i < spins_; ++i) {
    if (flag.reached(target)) return;
    pause();
  }
  if (!flag.reached(target)) await_asleep(flag, target, peer, call);
}

void ShmBackend::await_asleep(Flag& flag, std::uint32_t target, int peer, const Call& call) const {
  while (true) {
    flag.sleepers.fetch_add(1);
    const std::uint32_t seen = flag.value.load();
    if (!flag.reached(target)) futex_wait(flag.value, seen, sleep_slice);
    flag.sleepers.fetch_sub(1);
    if (flag.reached(target)) return;
    if (cancelled_) throw Error(Fault::aborted, context(call) + ": this rank gave up its group");
    session_->throw_if_peer_lost(context(call));
    if (Clock::now() >= call.deadline) throw_timeout(peer, call);
  }
}

void ShmBackend::throw_timeout(int peer, const Call& call) const {
  JobPage& page = session_->page();
  const bool here = page.phase(peer) == JobPage::Phase::alive;
  const auto& last = page.activity(peer);
  throw Error(Fault::timeout, fmt::format("{}: rank {} (pid {}) did not come in time; {}",
                                          context(call), peer, page.pid(peer),
                                          here ? fmt::format("it was last seen in {} #{}",
                                                             lockstep::name(last.operation.load()),
                                                             last.sequence.load())
                                               : "it is not in the job"));
}

std::string ShmBackend::context(const Call& call) const {
  return fmt::format("{} #{} of group {} on rank {}", lockstep::name(call.signature.operation),
                     call.sequence, group_, rank());
}

template <class Put, class Take>
void ShmBackend::relay(std::size_t bytes, const Call& call, Put put, Take take) {
  constexpr std::size_t chunk = GroupSegment::staging_bytes / 2;
  std::size_t half = 0;
  for (std::size_t begin = 0; begin < bytes; begin += chunk) {
    const std::size_t size = std::min(chunk, bytes - begin);
    put(segment_.staging(rank()) + half, begin, size);
    step(call);  // Whoever is here has also read the other half, which is filled next.
    take(half, begin, size);
    half = chunk - half;
  }
}

}  // namespace lockstep
