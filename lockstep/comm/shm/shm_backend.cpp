// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/fixed_text.h"
#include "lockstep/comm/reduce/reduce.h"
#include "lockstep/comm/shm/parts.h"

namespace lockstep {
namespace {

// Up to here it is faster that every rank reduces everything than that all meet once more.
constexpr std::size_t small_bytes = 4 << 10;

// Operations in which a rank has something else for each of its peers: half a room holds a slot
// for each of them.
bool has_slots(Operation operation) {
  return operation == Operation::scatter || operation == Operation::reduce_scatter ||
         operation == Operation::all_to_all;
}

// Whether peers can read this rank's input, or write its output, where these lie.
bool can_read_inputs(Operation operation) {
  return operation == Operation::all_gather || operation == Operation::gather ||
         operation == Operation::reduce_scatter || operation == Operation::all_to_all;
}
bool can_write_outputs(Operation operation) {
  return operation != Operation::gather && operation != Operation::reduce_scatter;
}

// Bytes of a part that go through half a room at a time.
std::size_t chunk_bytes(Operation operation, int ranks) {
  if (!has_slots(operation)) return GroupSegment::half_bytes;
  return GroupSegment::half_bytes / static_cast<std::size_t>(ranks) / cache_line * cache_line;
}

// The slice of a chunk of an all_reduce that `rank` combines. It lies at the same place in every
// chunk, also in a shorter last one: ranks still read the results of one chunk when the next but
// one is put into the same half, around those places.
Range slice_in_chunk(Range chunk, std::size_t element, int rank, int ranks, std::size_t chunks) {
  const std::size_t usual =
      chunks == 1 ? chunk.count() : GroupSegment::half_bytes / element;
  const Range slice = slice_of(usual, element, rank, ranks);
  return {std::min(slice.begin, chunk.count()), std::min(slice.end, chunk.count())};
}

// A buffer's elements, as bytes.
class Bytes {
 public:
  explicit Bytes(const Buffer& buffer)
      : begin_(static_cast<std::byte*>(buffer.data)), element_(size_of(buffer.dtype)) {}

  std::byte* at(std::size_t element) const { return begin_ + element * element_; }

 private:
  std::byte* begin_;
  std::size_t element_;
};

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<Peers> peers, std::string group, Deadline deadline)
    : peers_(std::move(peers)),
      group_(std::move(group)),
      rank_(peers_->rank()),
      size_(peers_->size()),
      segment_(make_segment(deadline)),
      meeting_(peers_, segment_, group_, deadline),
      mailbox_(peers_, segment_, meeting_, group_),
      sources_(static_cast<std::size_t>(size_)),
      targets_(static_cast<std::size_t>(size_)) {}

// One rank makes the memory, the others get it. A failure is an Error on all of them.
GroupSegment ShmBackend::make_segment(Deadline deadline) const {
  require(size_ <= GroupSegment::most_ranks,
          fmt::format("{} ranks on one host; {} is most", size_, GroupSegment::most_ranks));
  const std::size_t bytes = GroupSegment::bytes_for(size_);
  const auto throw_if_lost = [this] { peers_->throw_if_lost("making group " + group_); };
  if (rank_ != 0) return {peers_->obtain(group_, bytes, deadline, throw_if_lost), size_};
  try {
    return {peers_->offer(group_, bytes, size_ - 1), size_};
  } catch (const Error& error) {
    peers_->refuse(group_, size_ - 1, error.what());
    throw;
  }
}

bool ShmBackend::native(Operation operation, DType dtype, ReduceOp op) const {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return reduce_function(dtype, op) != nullptr;
    default:
      return true;
  }
}

bool ShmBackend::is_small(const Collective& collective) const {
  return collective.signature.operation == Operation::all_reduce &&
         collective.output.bytes() <= small_bytes;
}

void ShmBackend::enter(const Collective& collective) {
  Lane::Entry& mine = meeting_.next_entry();
  mine.signature = collective.signature;
  const Operation operation = collective.signature.operation;
  const bool small = is_small(collective);
  const bool reads = !small && can_read_inputs(operation);
  const bool writes = !small && can_write_outputs(operation);
  mine.input = reads ? regions_.locate(collective.input) : 0;
  mine.output = writes ? regions_.locate(collective.output) : 0;
  // What is in no registered memory must go through a room in any case.
  if (mine.input == 0 && mine.output == 0) put(collective, 0);
  meeting_.enter(collective);
}

ShmBackend::Path ShmBackend::path(const Collective& collective) const {
  if (is_small(collective)) return Path::at_once;
  return in_one_region(&Lane::Entry::input) || in_one_region(&Lane::Entry::output)
             ? Path::in_place
             : Path::staged;
}

bool ShmBackend::in_one_region(std::uint64_t Lane::Entry::*place) const {
  const std::uint64_t region = Regions::region_of(meeting_.entry(0).*place);
  for (int peer = 1; peer < size_; ++peer)
    if (Regions::region_of(meeting_.entry(peer).*place) != region) return false;
  return region != 0;
}

void ShmBackend::run(const Collective& collective) {
  switch (path(collective)) {
    case Path::at_once:
      return reduce_at_once(collective);
    case Path::in_place:
      run_in_place(collective);
      return meeting_.step(collective);
    case Path::staged:
      return run_staged(collective);
  }
}

void ShmBackend::reduce_at_once(const Collective& collective) {
  if (collective.output.count == 0) return;
  for (int peer = 0; peer < size_; ++peer) sources_[static_cast<std::size_t>(peer)] = half(peer, 0);
  targets_.assign(1, static_cast<std::byte*>(collective.output.data));
  reduce(collective, sources_, targets_, collective.output.count);
  ++chunks_before_;
}

std::byte* ShmBackend::located(int rank, std::uint64_t Lane::Entry::*place) const {
  return regions_.address(meeting_.entry(rank).*place, rank);
}

void ShmBackend::run_in_place(const Collective& collective) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  const Parts parts(collective, size_);
  const bool from_inputs = in_one_region(&Lane::Entry::input);
  const Bytes input(collective.input);
  const Bytes output(collective.output);
  const auto inputs_of = [&](int peer) { return located(peer, &Lane::Entry::input); };
  const auto outputs_of = [&](int peer) { return located(peer, &Lane::Entry::output); };

  switch (signature.operation) {
    case Operation::all_reduce:
    case Operation::reduce: {
      const Range slice = slice_of(signature.count, element, rank_, size_);
      targets_.clear();
      for (int peer = 0; peer < size_; ++peer) {
        std::byte* const theirs = outputs_of(peer) + slice.begin * element;
        sources_[static_cast<std::size_t>(peer)] = theirs;
        if (signature.operation == Operation::all_reduce || peer == signature.root)
          targets_.push_back(theirs);
      }
      return reduce(collective, sources_, targets_, slice.count());
    }
    case Operation::broadcast:
      if (rank_ != signature.root)
        copy_bytes(output.at(0), outputs_of(signature.root), collective.output.bytes());
      return;
    case Operation::reduce_scatter: {
      const Range mine = parts.of(rank_);
      for (int peer = 0; peer < size_; ++peer)
        sources_[static_cast<std::size_t>(peer)] = inputs_of(peer) + mine.begin * element;
      targets_.assign(1, output.at(0));
      return reduce(collective, sources_, targets_, mine.count());
    }
    case Operation::all_gather:
    case Operation::gather:
      for (int i = 0; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;  // So that ranks do not all read from one.
        if (from_inputs && (signature.operation == Operation::all_gather || rank_ == signature.root))
          copy_bytes(output.at(parts.of(peer).begin), inputs_of(peer), parts.of(peer).count() * element);
        if (!from_inputs)
          copy_bytes(outputs_of(peer) + parts.of(rank_).begin * element, input.at(0),
               parts.of(rank_).count() * element);
      }
      return;
    case Operation::scatter:
      for (int peer = 0; peer < size_ && rank_ == signature.root; ++peer)
        copy_bytes(outputs_of(peer), input.at(parts.of(peer).begin), parts.of(peer).count() * element);
      return;
    case Operation::all_to_all:
      for (int i = 0; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;
        if (from_inputs)
          copy_bytes(output.at(parts.received(peer, rank_).begin),
               inputs_of(peer) + parts.sent(peer, rank_).begin * element,
               parts.sent(peer, rank_).count() * element);
        else
          copy_bytes(outputs_of(peer) + parts.received(rank_, peer).begin * element,
               input.at(parts.sent(rank_, peer).begin), parts.sent(rank_, peer).count() * element);
      }
      return;
    default:
      return;
  }
}

bool ShmBackend::all_prepared() const {
  for (int peer = 0; peer < size_; ++peer)
    if (meeting_.entry(peer).input != 0 || meeting_.entry(peer).output != 0) return false;
  return true;
}

std::size_t ShmBackend::chunks_of(const Collective& collective) const {
  const Signature& signature = collective.signature;
  const std::size_t each = chunk_bytes(signature.operation, size_) / size_of(signature.dtype);
  return (Parts(collective, size_).longest() + each - 1) / each;
}

void ShmBackend::run_staged(const Collective& collective) {
  const std::size_t chunks = chunks_of(collective);
  if (chunks == 0) return;
  if (!all_prepared()) {
    const Lane::Entry& mine = meeting_.entry(rank_);
    if (mine.input != 0 || mine.output != 0) put(collective, 0);
    meeting_.step(collective);
  }
  if (collective.signature.operation == Operation::all_reduce) {
    all_reduce_staged(collective, chunks);
  } else {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0) {
        put(collective, chunk);
        meeting_.step(collective);
      }
      take(collective, chunk);
    }
  }
  chunks_before_ += chunks;
}

// One meeting a chunk: while this rank combines its slice of one chunk it takes the results of the
// one before and puts the one after. put() leaves out the slice that combine() writes, so the two
// share a half.
void ShmBackend::all_reduce_staged(const Collective& collective, std::size_t chunks) {
  for (std::size_t chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) combine(collective, chunk);
    if (chunk > 0) take(collective, chunk - 1);
    if (chunk + 1 < chunks) put(collective, chunk + 1);
    if (chunk < chunks) meeting_.step(collective);
  }
}

std::byte* ShmBackend::half(int rank, std::size_t chunk) const {
  return segment_.half(rank, static_cast<int>((chunks_before_ + chunk) & 1));
}

void ShmBackend::put(const Collective& collective, std::size_t chunk) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  const std::size_t bytes = chunk_bytes(signature.operation, size_);
  const Parts parts(collective, size_);
  const Bytes input(collective.input);
  const Bytes output(collective.output);
  std::byte* const mine = half(rank_, chunk);
  const auto range_of = [&](std::size_t count) { return chunk_of(count, bytes / element, chunk); };
  const auto put_whole = [&](const Bytes& from, std::size_t count) {
    const Range range = range_of(count);
    copy_bytes(mine, from.at(range.begin), range.count() * element);
  };
  const auto put_slot = [&](int peer, Range part) {
    const Range range = range_of(part.count());
    copy_bytes(mine + static_cast<std::size_t>(peer) * bytes, input.at(part.begin + range.begin),
         range.count() * element);
  };

  switch (signature.operation) {
    case Operation::all_reduce: {
      const Range range = range_of(signature.count);
      const Range own = is_small(collective)
                            ? Range{0, 0}  // Every rank will reduce all of it.
                            : slice_in_chunk(range, element, rank_, size_, chunks_of(collective));
      copy_bytes(mine, output.at(range.begin), own.begin * element);
      copy_bytes(mine + own.end * element, output.at(range.begin + own.end),
           (range.count() - own.end) * element);
      return;
    }
    case Operation::broadcast:
      if (rank_ == signature.root) put_whole(output, signature.count);
      return;
    case Operation::reduce:
      if (rank_ != signature.root) put_whole(output, signature.count);
      return;
    case Operation::gather:
      if (rank_ != signature.root) put_whole(input, parts.of(rank_).count());
      return;
    case Operation::all_gather:
      if (size_ > 1) put_whole(input, parts.of(rank_).count());
      return;
    case Operation::scatter:
    case Operation::reduce_scatter:
      if (signature.operation == Operation::scatter && rank_ != signature.root) return;
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) put_slot(peer, parts.of(peer));
      return;
    case Operation::all_to_all:
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) put_slot(peer, parts.sent(rank_, peer));
      return;
    default:
      return;
  }
}

// This rank's slice of an all_reduce's chunk: from all rooms and its own memory, into its own
// memory and its own room.
void ShmBackend::combine(const Collective& collective, std::size_t chunk) {
  const std::size_t element = size_of(collective.signature.dtype);
  const Range range =
      chunk_of(collective.signature.count, GroupSegment::half_bytes / element, chunk);
  const Range slice = slice_in_chunk(range, element, rank_, size_, chunks_of(collective));
  std::byte* const own = Bytes(collective.output).at(range.begin + slice.begin);
  for (int peer = 0; peer < size_; ++peer)
    sources_[static_cast<std::size_t>(peer)] =
        peer == rank_ ? own : half(peer, chunk) + slice.begin * element;
  targets_.assign({own, half(rank_, chunk) + slice.begin * element});
  reduce(collective, sources_, targets_, slice.count());
}

void ShmBackend::take(const Collective& collective, std::size_t chunk) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  const std::size_t bytes = chunk_bytes(signature.operation, size_);
  const Parts parts(collective, size_);
  const Bytes input(collective.input);
  const Bytes output(collective.output);
  const auto range_of = [&](std::size_t count) { return chunk_of(count, bytes / element, chunk); };
  const auto slot_of = [&](int peer, int to) {
    return half(peer, chunk) + static_cast<std::size_t>(to) * bytes;
  };

  switch (signature.operation) {
    case Operation::all_reduce: {
      const Range range = range_of(signature.count);
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const Range slice = slice_in_chunk(range, element, peer, size_, chunks_of(collective));
        copy_bytes(output.at(range.begin + slice.begin), half(peer, chunk) + slice.begin * element,
             slice.count() * element);
      }
      return;
    }
    case Operation::broadcast: {
      if (rank_ == signature.root) return;
      const Range range = range_of(signature.count);
      return copy_bytes(output.at(range.begin), half(signature.root, chunk), range.count() * element);
    }
    case Operation::reduce: {
      if (rank_ != signature.root) return;
      const Range range = range_of(signature.count);
      targets_.assign(1, output.at(range.begin));
      for (int peer = 0; peer < size_; ++peer)
        sources_[static_cast<std::size_t>(peer)] = peer == rank_ ? targets_[0] : half(peer, chunk);
      return reduce(collective, sources_, targets_, range.count());
    }
    case Operation::all_gather:
    case Operation::gather:
      if (signature.operation == Operation::gather && rank_ != signature.root) return;
      for (int peer = 0; peer < size_; ++peer) {
        const Range range = range_of(parts.of(peer).count());
        copy_bytes(output.at(parts.of(peer).begin + range.begin),
             peer == rank_ ? input.at(range.begin) : half(peer, chunk), range.count() * element);
      }
      return;
    case Operation::scatter: {
      const Range range = range_of(parts.of(rank_).count());
      return copy_bytes(output.at(range.begin),
                  rank_ == signature.root ? input.at(parts.of(rank_).begin + range.begin)
                                          : slot_of(signature.root, rank_),
                  range.count() * element);
    }
    case Operation::reduce_scatter: {
      const Range range = range_of(parts.of(rank_).count());
      for (int peer = 0; peer < size_; ++peer)
        sources_[static_cast<std::size_t>(peer)] =
            peer == rank_ ? input.at(parts.of(rank_).begin + range.begin) : slot_of(peer, rank_);
      targets_.assign(1, output.at(range.begin));
      return reduce(collective, sources_, targets_, range.count());
    }
    case Operation::all_to_all:
      for (int peer = 0; peer < size_; ++peer) {
        const Range range = range_of(parts.sent(peer, rank_).count());
        copy_bytes(output.at(parts.received(peer, rank_).begin + range.begin),
             peer == rank_ ? input.at(parts.sent(rank_, rank_).begin + range.begin)
                           : slot_of(peer, rank_),
             range.count() * element);
      }
      return;
    default:
      return;
  }
}

void ShmBackend::reduce(const Collective& collective, std::vector<const std::byte*>& sources,
                        std::vector<std::byte*>& targets, std::size_t count) const {
  if (count == 0) return;
  const Signature& signature = collective.signature;
  reduce_function(signature.dtype, signature.op)(sources.data(), static_cast<int>(sources.size()),
                                                 targets.data(), static_cast<int>(targets.size()),
                                                 count);
}

std::unique_ptr<Backend> ShmBackend::among(const std::vector<int>& ranks, const std::string& group,
                                           Deadline deadline) {
  return std::make_unique<ShmBackend>(peers_->among(ranks), group, deadline);
}

Backend::Allocation ShmBackend::allocate(const Collective& collective) {
  const std::size_t bytes = collective.signature.count;
  const std::size_t whole = Regions::bytes_for(bytes, size_);
  const std::string key = fmt::format("{} memory {}", group_, ++regions_made_);
  SharedMemory memory;
  std::string failure;
  // First the one who makes it, then all who map it, say how it went.
  const auto attempt = [&](auto action) {
    try {
      memory = action();
    } catch (const Error& error) {
      if (error.fault() != Fault::system) throw;
      failure = error.what();
    }
    return fail_together(collective, failure);
  };
  std::string refusal = attempt([&] {
    return rank_ == 0 ? peers_->offer(key, whole, size_ - 1) : SharedMemory();
  });
  if (refusal.empty() && size_ > 1)
    refusal = attempt([&] {
      if (rank_ == 0) return memory;
      return peers_->obtain(key, whole, collective.deadline,
                            [&] { meeting_.throw_if_over("allocate"); });
    });
  if (!refusal.empty()) return {{}, refusal};
  return {regions_.add(std::move(memory), bytes, rank_), {}};
}

// The first rank's reason not to go on; empty when no rank has one.
std::string ShmBackend::fail_together(const Collective& collective, const std::string& mine) {
  Lane& lane = segment_.lane(rank_);
  copy_text(lane.reason, mine);
  lane.refused = mine.empty() ? 0 : 1;
  meeting_.step(collective);
  std::string reason;
  for (int peer = 0; peer < size_ && reason.empty(); ++peer)
    if (segment_.lane(peer).refused != 0)
      reason = fmt::format("rank {}: {}", peer, segment_.lane(peer).reason);
  meeting_.step(collective);  // Before any of them is written again.
  return reason;
}

}  // namespace lockstep
