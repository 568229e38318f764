// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/hosts_collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/comm/reduce/reduce.h"
#include "lockstep/comm/shm/parts.h"

namespace lockstep::comm {
namespace {

// Slice sizes: small enough to overlap with local work, large enough for the engine.
constexpr std::size_t most_chunk_bytes = std::size_t{4} << 20;
constexpr std::size_t least_chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t usual_chunks = 4;

// Bytes per call of an engine that cannot cancel, with one rank per host. With copies and the
// engine's own buffers, they fit a 2 MiB cache.
constexpr std::size_t engine_chunk_bytes = std::size_t{512} << 10;

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

}  // namespace

HostsCollectives::HostsCollectives(const HostsGroup& group, HostsEngines& engines,
                                   KeptMemory& memory)
    : map_(group.map()), group_(group), engines_(engines), memory_(memory) {}

void HostsCollectives::run(const Collective& collective) {
  const Operation operation = collective.signature.operation;
  if (shape_of(operation) == OperationShape::barrier)
    return;  // Complete when all ranks have entered.
  const HostsCall call(group_, collective);
  const bool one_rank_a_host = map_.hosts() == group_.size();
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return one_rank_a_host ? by_engine_alone(call) : all_reduce(call);
    case Operation::broadcast:
      return one_rank_a_host ? by_engine_alone(call) : broadcast(call);
    case Operation::all_gather:
      return one_rank_a_host ? by_engine_alone(call) : all_gather(call);
    case Operation::reduce_scatter:
      return one_rank_a_host ? by_engine_alone(call) : reduce_scatter(call);
    default:  // gather, scatter, all_to_all: each byte crosses a link only once anyway.
      return cross(call, engines_.of_all(call), collective);
  }
}

// Chunks of the output, of at most `most` elements, equal on all ranks.
std::vector<HostsCollectives::Chunk> HostsCollectives::chunks_of(const HostsCall& call,
                                                                 std::size_t most) const {
  const Buffer& data = call.outer.output;
  std::vector<Chunk> chunks;
  for (std::size_t begin = 0; begin < data.count; begin += most)
    chunks.push_back({.data = part_of(data, begin, std::min(most, data.count - begin)),
                      .slot = chunks.size() % EngineCall::slots,
                      .slices = {},
                      .mine = {}});
  return chunks;
}

// Overlaps the engine with local work: docs/algorithms.md.
template <class Before, class Cross, class After>
void HostsCollectives::in_stages(const std::vector<Chunk>& chunks, Before before, Cross cross,
                                 After after) {
  std::unique_ptr<EngineCall> under_way;
  for (std::size_t i = 0; i <= chunks.size(); ++i) {
    std::unique_ptr<EngineCall> next;
    if (i < chunks.size()) {
      before(chunks[i]);
      next = cross(chunks[i]);
    }
    if (under_way) under_way->wait();
    if (next) next->start();
    if (under_way) under_way->deliver();
    if (i > 0) after(chunks[i - 1]);
    under_way = std::move(next);
  }
}

void HostsCollectives::by_engine_alone(const HostsCall& call) {
  EngineCommunicator& engine = engines_.of_all(call);
  Collective step = call.outer;
  step.signature.op = call.sums;
  if (engine.can_cancel() || shape_of(step.signature.operation) != OperationShape::in_place) {
    cross(call, engine, step);
  } else {  // Some ranks may have to copy; all ranks then use equal chunks.
    in_stages(
        chunks_of(call, engine_chunk_bytes / size_of(call.dtype)), [](const Chunk&) {},
        [&](const Chunk& chunk) {
          step.output = chunk.data;
          step.signature.count = chunk.data.count;
          return std::make_unique<EngineCall>(memory_, call, engine, step, chunk.slot);
        },
        [](const Chunk&) {});
  }
  const bool has_result = call.outer.signature.operation != Operation::reduce || call.root_is_here;
  if (call.averages && has_result) divide_sums(call.outer.output, group_.size());
}

std::vector<HostsCollectives::Chunk> HostsCollectives::sliced_chunks_of(const HostsCall& call) {
  const Buffer& data = call.outer.output;
  const auto slices = static_cast<std::size_t>(map_.slices());
  const std::size_t bytes =
      std::clamp(data.bytes() / slices / usual_chunks, least_chunk_bytes, most_chunk_bytes);
  const std::size_t most = bytes / size_of(call.dtype);  // Elements.
  std::vector<Chunk> chunks = chunks_of(call, slices * most);
  for (Chunk& chunk : chunks) {
    chunk.slices = cut(chunk.data.count, size_of(call.dtype), map_.slices(), map_.local_size());
    const std::size_t mine = chunk.slices[static_cast<std::size_t>(map_.local_rank())];
    // A cache line more than `most`: slices end at cache lines, and all chunks of a slot share one
    // buffer.
    const std::size_t capacity = most + cache_line / size_of(call.dtype);
    check(mine <= capacity, "a slice is larger than its scratch memory");
    chunk.mine = memory_.scratch(chunk.slot, like(data, capacity));
    chunk.mine.count = mine;
  }
  return chunks;
}

// Also does reduce, whose result only one rank gets.
void HostsCollectives::all_reduce(const HostsCall& call) {
  const bool to_all = call.outer.signature.operation == Operation::all_reduce;
  const bool has_result = to_all || call.root_is_here;
  in_stages(
      sliced_chunks_of(call),
      [&](const Chunk& chunk) {
        call.on_host(Operation::reduce_scatter, chunk.data, chunk.mine, chunk.slices);
      },
      [&](const Chunk& chunk) {
        return call_of_slice(call, to_all ? Operation::all_reduce : Operation::reduce, chunk);
      },
      [&](const Chunk& chunk) {
        if (call.averages && has_result) divide_sums(chunk.mine, group_.size());
        if (to_all)
          call.on_host(Operation::all_gather, chunk.mine, chunk.data, chunk.slices);
        else if (has_result)
          call.on_host(Operation::gather, chunk.mine, chunk.data, chunk.slices, call.local_root);
      });
}

void HostsCollectives::broadcast(const HostsCall& call) {
  in_stages(
      sliced_chunks_of(call),
      [&](const Chunk& chunk) {
        if (!call.root_is_here) return;
        call.on_host(Operation::broadcast, {}, chunk.data, {}, call.local_root);
        copy(chunk.mine,
             part_of(chunk.data, begin_of(chunk.slices, map_.local_rank()), chunk.mine.count));
      },
      [&](const Chunk& chunk) { return call_of_slice(call, Operation::broadcast, chunk); },
      [&](const Chunk& chunk) {
        if (!call.root_is_here)
          call.on_host(Operation::all_gather, chunk.mine, chunk.data, chunk.slices);
      });
}

// Null when this rank owns no slice.
std::unique_ptr<EngineCall> HostsCollectives::call_of_slice(const HostsCall& call,
                                                            Operation operation,
                                                            const Chunk& chunk) {
  if (chunk.mine.count == 0) return nullptr;
  return std::make_unique<EngineCall>(memory_, call, engines_.of_slice(call),
                                      call.step(operation, {}, chunk.mine, {}, call.root_host),
                                      chunk.slot);
}

void HostsCollectives::all_gather(const HostsCall& call) {
  const Buffer& output = call.outer.output;
  const HostBlocks blocks(map_, call.counts(), size_of(call.dtype));
  const Counts by_slice = blocks.elements_by_slice(map_.local_size());
  const auto me = static_cast<std::size_t>(map_.local_rank());
  const Buffer block = memory_.scratch(0, like(output, blocks.elements(map_.host())));
  const Buffer mine = memory_.scratch(1, like(output, by_slice[me]));
  const Buffer all = memory_.scratch(2, like(output, blocks.elements()));
  call.on_host(Operation::all_gather, call.outer.input, block, blocks.parts(map_.host()));
  if (mine.count > 0) {
    const Counts cuts = blocks.cut_of(map_.host());
    cross_slices(call, Operation::all_gather,
                 part_of(block, begin_of(cuts, map_.local_rank()), cuts[me]), mine,
                 blocks.slices_by_host(map_.local_rank()));
  }
  call.on_host(Operation::all_gather, mine, all, by_slice);
  blocks.parts_from_slices(bytes_of(output), bytes_of(all));
}

void HostsCollectives::reduce_scatter(const HostsCall& call) {
  const Buffer& input = call.outer.input;
  const HostBlocks blocks(map_, call.counts(), size_of(call.dtype));
  const Counts by_slice = blocks.elements_by_slice(map_.local_size());
  const auto me = static_cast<std::size_t>(map_.local_rank());
  const Buffer all = memory_.scratch(0, like(input, blocks.elements()));
  const Buffer mine = memory_.scratch(1, like(input, by_slice[me]));
  const Counts here =
      cut(blocks.elements(map_.host()), size_of(call.dtype), map_.slices(), map_.local_size());
  const Buffer slice = memory_.scratch(2, like(input, here[me]));
  const Buffer block = memory_.scratch(3, like(input, blocks.elements(map_.host())));
  blocks.slices_from_parts(bytes_of(all), bytes_of(input));
  call.on_host(Operation::reduce_scatter, all, mine, by_slice);
  if (mine.count > 0) {
    cross_slices(call, Operation::reduce_scatter, mine, slice,
                 blocks.slices_by_host(map_.local_rank()));
    if (call.averages) divide_sums(slice, group_.size());
  }
  call.on_host(Operation::all_gather, slice, block, here);
  const Counts parts = blocks.parts(map_.host());
  copy(call.outer.output, part_of(block, begin_of(parts, map_.local_rank()), parts[me]));
}

void HostsCollectives::cross_slices(const HostsCall& call, Operation operation, const Buffer& input,
                                    const Buffer& output, const Counts& counts) {
  cross(call, engines_.of_slice(call), call.step(operation, input, output, counts));
}

void HostsCollectives::cross(const HostsCall& call, EngineCommunicator& engine,
                             const Collective& collective) {
  EngineCall running(memory_, call, engine, collective);
  running.start();
  running.wait();
  running.deliver();
}

}  // namespace lockstep::comm
