// How HostsBackend completes a collective.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "lockstep/comm/bare_text.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/comm/hosts/slices.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/reduce/average.h"
#include "lockstep/comm/timeouts.h"

namespace lockstep {
namespace {

// Of a slice that is on its way at a time: bounds the scratch memory.
constexpr std::size_t piece_bytes = std::size_t{8} << 20;

// Of a user's memory that is copied for an engine at a time.
constexpr std::size_t staged_bytes = std::size_t{2} << 20;

constexpr std::chrono::milliseconds pause{20};

Buffer part_of(const Buffer& whole, std::size_t begin, std::size_t count) {
  Buffer part = whole;
  part.data = static_cast<std::byte*>(whole.data) + begin * size_of(whole.dtype);
  part.count = count;
  return part;
}

Buffer like(const Buffer& buffer, std::size_t count) {
  Buffer shape = buffer;
  shape.count = count;
  return shape;
}

void copy(const Buffer& to, const Buffer& from) {
  if (from.count > 0) std::memcpy(to.data, from.data, from.bytes());
}

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

bool is_in_place(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast ||
         operation == Operation::reduce;
}

}  // namespace

HostsBackend::Call::Call(const HostsBackend& backend, const Collective& collective)
    : outer(collective),
      dtype(collective.signature.dtype),
      deadline(in(longer_by(collective.timeout, grace))),
      sums(collective.signature.op == ReduceOp::average ? ReduceOp::sum : collective.signature.op),
      averages(reduces(collective.signature.operation) &&
               collective.signature.op == ReduceOp::average),
      ranks(static_cast<int>(backend.ranks_.size())),
      root_host(backend.map_.host_of(collective.signature.root)),
      root_is_here(root_host == backend.map_.host()),
      local_root(backend.map_.local_rank_of(collective.signature.root)) {}

Counts HostsBackend::Call::counts() const {
  if (!outer.counts.empty()) return {outer.counts.begin(), outer.counts.end()};
  return Counts(static_cast<std::size_t>(ranks), outer.signature.count);
}

void HostsBackend::run(const Collective& collective) {
  const Call call(*this, collective);
  const bool one_rank_a_host = map_.hosts() == call.ranks;
  switch (collective.signature.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return one_rank_a_host ? by_engine_alone(call) : all_reduce(call);
    case Operation::broadcast:
      return one_rank_a_host ? by_engine_alone(call) : broadcast(call);
    case Operation::all_gather:
      return one_rank_a_host ? by_engine_alone(call) : all_gather(call);
    case Operation::reduce_scatter:
      return one_rank_a_host ? by_engine_alone(call) : reduce_scatter(call);
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:  // Nothing of these crosses a link twice: hosts need not help.
      return by_all_ranks(call);
    default:
      return;  // A barrier has happened when all have entered.
  }
}

void HostsBackend::by_engine_alone(const Call& call) {
  EngineCommunicator& engine = engine_of_all(call);
  Collective step = call.outer;
  step.signature.op = call.sums;
  if (!is_in_place(step.signature.operation) || engine.can_cancel()) {
    run_engine(call, engine, step);
  } else {
    // What may have to be copied, in pieces that stay in cache; all ranks cut alike, whoever copies.
    const Buffer& data = call.outer.output;
    const std::size_t most = staged_bytes / size_of(call.dtype);
    for (std::size_t begin = 0; begin < data.count; begin += most) {
      step.output = part_of(data, begin, std::min(most, data.count - begin));
      step.signature.count = step.output.count;
      run_engine(call, engine, step);
    }
  }
  const bool has_result = call.outer.signature.operation != Operation::reduce || call.root_is_here;
  if (call.averages && has_result) divide_sums(call.outer.output, call.ranks);
}

void HostsBackend::by_all_ranks(const Call& call) {
  Collective mine = call.outer;
  const bool is_root = mine.signature.root == rank_;
  const Buffer nothing{.dtype = call.dtype};
  if (mine.signature.operation == Operation::gather && !is_root) mine.output = nothing;
  if (mine.signature.operation == Operation::scatter && !is_root) mine.input = nothing;
  run_engine(call, engine_of_all(call), mine);
}

// --- Two levels -------------------------------------------------------------------------------------

// Calls act(piece, its elements by local rank, this rank's slice of it in memory of ours).
template <class Act>
void HostsBackend::for_each_piece(const Call& call, Act act) {
  const Buffer& data = call.outer.output;
  const std::size_t most =
      static_cast<std::size_t>(map_.slices()) * piece_bytes / size_of(call.dtype);
  for (std::size_t begin = 0; begin < data.count; begin += most) {
    const Buffer piece = part_of(data, begin, std::min(most, data.count - begin));
    const Counts slices = cut(piece.count, size_of(call.dtype), map_.slices(), map_.local_size());
    const std::size_t mine = slices[static_cast<std::size_t>(map_.local_rank())];
    act(piece, slices, kept_.scratch(0, like(data, mine)));
  }
}

// And reduce, of which only one host, and there only one rank, gets the result.
void HostsBackend::all_reduce(const Call& call) {
  const bool to_all = call.outer.signature.operation == Operation::all_reduce;
  for_each_piece(call, [&](const Buffer& piece, const Counts& slices, const Buffer& mine) {
    on_host(call, Operation::reduce_scatter, piece, mine, slices);
    if (mine.count > 0) {
      between_hosts(call, to_all ? Operation::all_reduce : Operation::reduce, {}, mine, {},
                    call.root_host);
      if (call.averages && (to_all || call.root_is_here)) divide_sums(mine, call.ranks);
    }
    if (to_all)
      on_host(call, Operation::all_gather, mine, piece, slices);
    else if (call.root_is_here)
      on_host(call, Operation::gather, mine, piece, slices, call.local_root);
  });
}

void HostsBackend::broadcast(const Call& call) {
  for_each_piece(call, [&](const Buffer& piece, const Counts& slices, const Buffer& mine) {
    if (call.root_is_here) {
      on_host(call, Operation::broadcast, {}, piece, {}, call.local_root);
      copy(mine, part_of(piece, begin_of(slices, map_.local_rank()), mine.count));
    }
    if (mine.count > 0) between_hosts(call, Operation::broadcast, {}, mine, {}, call.root_host);
    if (!call.root_is_here) on_host(call, Operation::all_gather, mine, piece, slices);
  });
}

// Each host's block is put together there, sent slice by slice, and shared there.
void HostsBackend::all_gather(const Call& call) {
  const Buffer& output = call.outer.output;
  const HostBlocks blocks(map_, call.counts(), size_of(call.dtype));
  const Counts by_slice = blocks.elements_by_slice(map_.local_size());
  const auto me = static_cast<std::size_t>(map_.local_rank());
  const Buffer block = kept_.scratch(0, like(output, blocks.elements(map_.host())));
  const Buffer mine = kept_.scratch(1, like(output, by_slice[me]));
  const Buffer all = kept_.scratch(2, like(output, blocks.elements()));
  on_host(call, Operation::all_gather, call.outer.input, block, blocks.parts(map_.host()));
  if (mine.count > 0) {
    const Counts cuts = blocks.cut_of(map_.host());
    between_hosts(call, Operation::all_gather,
                  part_of(block, begin_of(cuts, map_.local_rank()), cuts[me]), mine,
                  blocks.slices_by_host(map_.local_rank()));
  }
  on_host(call, Operation::all_gather, mine, all, by_slice);
  blocks.parts_from_slices(bytes_of(output), bytes_of(all));
}

void HostsBackend::reduce_scatter(const Call& call) {
  const Buffer& input = call.outer.input;
  const HostBlocks blocks(map_, call.counts(), size_of(call.dtype));
  const Counts by_slice = blocks.elements_by_slice(map_.local_size());
  const auto me = static_cast<std::size_t>(map_.local_rank());
  const Buffer all = kept_.scratch(0, like(input, blocks.elements()));
  const Buffer mine = kept_.scratch(1, like(input, by_slice[me]));
  const Counts here =
      cut(blocks.elements(map_.host()), size_of(call.dtype), map_.slices(), map_.local_size());
  const Buffer slice = kept_.scratch(2, like(input, here[me]));
  const Buffer block = kept_.scratch(3, like(input, blocks.elements(map_.host())));
  blocks.slices_from_parts(bytes_of(all), bytes_of(input));
  on_host(call, Operation::reduce_scatter, all, mine, by_slice);
  if (mine.count > 0) {
    between_hosts(call, Operation::reduce_scatter, mine, slice,
                  blocks.slices_by_host(map_.local_rank()));
    if (call.averages) divide_sums(slice, call.ranks);
  }
  on_host(call, Operation::all_gather, slice, block, here);
  const Counts parts = blocks.parts(map_.host());
  copy(call.outer.output, part_of(block, begin_of(parts, map_.local_rank()), parts[me]));
}

// --- One level ----------------------------------------------------------------------------------------

namespace {

Collective step_of(const Collective& outer, Operation operation, ReduceOp op, const Buffer& input,
                   const Buffer& output, const Counts& counts, int root) {
  Collective step;
  step.signature = {.count = counts.empty()
                                 ? output.count
                                 : std::accumulate(counts.begin(), counts.end(), std::size_t{0}),
                    .layout = counts.empty() ? 0 : hash_of(counts.data(), counts.size() * 8),
                    .root = root,
                    .operation = operation,
                    .dtype = output.dtype,
                    .op = op};
  step.sequence = outer.sequence;
  step.input = input;
  step.output = output;
  step.counts = counts;
  return step;
}

}  // namespace

void HostsBackend::on_host(const Call& call, Operation operation, const Buffer& input,
                           const Buffer& output, const Counts& counts, int root) {
  Collective step = step_of(call.outer, operation, call.sums, input, output, counts, root);
  if (step.signature.count == 0) return;
  step.timeout = until(call.deadline);
  local_->enter(step);
  for (int peer = 0; peer < map_.local_size(); ++peer)
    check(local_->entered(peer) == step.signature,
          "ranks of a host have lost their common order inside of a collective");
  local_->run(step);
}

void HostsBackend::between_hosts(const Call& call, Operation operation, const Buffer& input,
                                 const Buffer& output, const Counts& counts, int root) {
  run_engine(call, slice_engine(call),
             step_of(call.outer, operation, call.sums, input, output, counts, root));
}

// Where the engine cannot cancel, what it works on must outlive its caller: memory of the user's is
// copied into some that does.
void HostsBackend::run_engine(const Call& call, EngineCommunicator& engine, Collective collective) {
  const Buffer output = collective.output;
  auto kept = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  if (!engine.can_cancel()) {
    const auto keep = [&](Buffer& buffer, std::size_t which, bool is_read) {
      if (buffer.bytes() == 0) return;
      std::shared_ptr<const void> owner = kept_.owner_of(buffer);
      if (!owner) {
        const Buffer copy = kept_.scratch(which, buffer);
        if (is_read) std::memcpy(copy.data, buffer.data, buffer.bytes());
        buffer = copy;
        owner = kept_.owner_of(buffer);
      }
      kept->push_back(std::move(owner));
    };
    keep(collective.input, staged_input, true);
    keep(collective.output, staged_output, is_in_place(collective.signature.operation));
  }
  try {
    engine.run(collective, kept, call.deadline, [&] { throw_if_over(call.outer); });
  } catch (const Error& error) {
    const bool may_be_explained =
        error.fault() == Fault::system || error.fault() == Fault::timeout ||
        (error.fault() == Fault::peer_lost && !error.failure());  // Gloo's: a connection ended.
    if (!may_be_explained) throw;
    throw_if_explained(call);
    throw Error(error.fault(), fmt::format("{}: {}", context(call.outer), bare_text(error)));
  }
  const bool is_whole = collective.signature.operation != Operation::reduce ||
                        collective.signature.root == engine.rank();
  if (collective.output.data != output.data && is_whole)
    std::memcpy(output.data, collective.output.data, output.bytes());
}

// An engine fails when a peer dies, and often before we have heard who it was.
void HostsBackend::throw_if_explained(const Call& call) const {
  for (const Deadline patience = in(time_for_news); Clock::now() < patience;
       std::this_thread::sleep_for(pause))
    throw_if_over(call.outer);
}

// --- Communicators ------------------------------------------------------------------------------------

void HostsBackend::make_engines() {
  const Collective making{.signature = {.operation = Operation::split}, .timeout = timeout_};
  const Call call(*this, making);
  if (map_.owns_slice() && map_.hosts() < call.ranks) slice_engine(call);
  engine_of_all(call);
}

EngineCommunicator& HostsBackend::slice_engine(const Call& call) {
  if (!slice_engine_)
    slice_engine_ = make_engine(call, map_.slice_ranks(map_.local_rank()), map_.host(),
                                fmt::format("slice {}", map_.local_rank()), {});
  return *slice_engine_;
}

EngineCommunicator& HostsBackend::engine_of_all(const Call& call) {
  if (!engine_of_all_) {
    std::vector<int> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    engine_of_all_ = make_engine(call, all, rank_, "all", here_);
  }
  return *engine_of_all_;
}

std::unique_ptr<EngineCommunicator> HostsBackend::make_engine(const Call& call,
                                                              const std::vector<int>& members,
                                                              int rank, const std::string& what,
                                                              Place local) {
  CommunicatorOptions options = context_->engine;
  options.rank = rank;
  options.world_ranks.clear();
  for (const int member : members)
    options.world_ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
  options.name = fmt::format("{}/{}", group_, what);
  options.local = local;
  options.timeout = until(call.deadline);
  // Whoever waits for a call has its deadline, and cancels it.
  options.call_timeout = std::chrono::hours(24 * 365);
  try {
    return std::make_unique<EngineCommunicator>(std::move(options),
                                                [&] { throw_if_over(call.outer); });
  } catch (const Error& error) {
    if (error.fault() == Fault::system || error.fault() == Fault::timeout) throw_if_explained(call);
    throw;
  }
}

}  // namespace lockstep
