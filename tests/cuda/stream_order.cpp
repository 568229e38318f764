// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/stream_order.h"

#include <algorithm>
#include <utility>

namespace lockstep::test {
namespace {

void advance(StreamOrder::Moment& to, const StreamOrder::Moment& moment) {
  for (const auto& [stream, uses] : moment) to[stream] = std::max(to[stream], uses);
}

bool overlap(StreamOrder::Memory a, StreamOrder::Memory b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

bool covers(StreamOrder::Memory a, StreamOrder::Memory b) {
  return a.data() <= b.data() && b.data() + b.size() <= a.data() + a.size();
}

const char* past(StreamOrder::Kind kind) {
  return kind == StreamOrder::Kind::read ? "read" : "wrote";
}

}  // namespace

StreamOrder::Moment& StreamOrder::now_of(c10::StreamId stream) {
  return now_.try_emplace(stream, host_).first->second;
}

StreamOrder::Block* StreamOrder::block_of(const std::byte* data) {
  const auto next = blocks_.upper_bound(data);
  if (next == blocks_.begin()) return nullptr;
  auto& [begin, block] = *std::prev(next);
  return data < begin + block.bytes ? &block : nullptr;
}

bool StreamOrder::has_seen(c10::StreamId stream, const Use& use) {
  return now_of(stream)[use.stream] >= use.number;
}

void StreamOrder::allocate(c10::StreamId stream, Memory memory) {
  blocks_.insert_or_assign(memory.data(), Block{.stream = stream, .bytes = memory.size()});
}

void StreamOrder::use(c10::StreamId stream, Memory memory, Kind kind) {
  Block* const block = block_of(memory.data());
  if (block == nullptr || memory.empty()) return;
  for (const Use& use : block->uses)
    if (overlap(use.memory, memory) && (use.kind == Kind::write || kind == Kind::write) &&
        !has_seen(stream, use))
      faults_.push_back("stream " + std::to_string(stream) + ' ' + past(kind) + ' ' +
                        std::to_string(memory.size()) + " bytes that stream " +
                        std::to_string(use.stream) + ' ' + past(use.kind) +
                        ", and had not waited for it");
  std::erase_if(block->uses, [&](const Use& use) {
    return covers(memory, use.memory) &&
           (kind == Kind::write || (use.kind == Kind::read && use.stream == stream));
  });
  block->uses.push_back({stream, ++now_of(stream)[stream], memory, kind});
}

void StreamOrder::keep_for(c10::StreamId stream, const void* data) {
  if (Block* const block = block_of(static_cast<const std::byte*>(data)))
    block->kept_for.insert(stream);
}

bool StreamOrder::free(const void* data) {
  const auto found = blocks_.find(static_cast<const std::byte*>(data));
  if (found == blocks_.end()) return false;
  const Block block = std::move(found->second);
  blocks_.erase(found);
  for (const Use& use : block.uses)
    if (!has_seen(block.stream, use) && !block.kept_for.contains(use.stream))
      faults_.push_back(std::to_string(block.bytes) + " bytes of stream " +
                        std::to_string(block.stream) + " were freed while stream " +
                        std::to_string(use.stream) + " may still use them");
  return true;
}

void StreamOrder::wait(c10::StreamId stream, const Moment& moment) {
  advance(now_of(stream), moment);
}

void StreamOrder::wait_on_host(const Moment& moment) {
  advance(host_, moment);
  for (auto& [stream, now] : now_) advance(now, moment);
}

void StreamOrder::wait_on_host() {
  for (const auto& [stream, now] : std::map(now_)) wait_on_host(now);
}

std::vector<std::string> StreamOrder::take_faults() { return std::exchange(faults_, {}); }

}  // namespace lockstep::test
