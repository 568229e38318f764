// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/ring.h"

#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <memory>

#include "lockstep/comm/engine/plugin_parts.h"

namespace lockstep::comm::engines {
namespace {

// docs/internals/hosts.md explains why not Gloo's ring. Other sizes from 64 KiB to 512 KiB were not
// faster.
constexpr std::size_t most_block_bytes = std::size_t{128} << 10;
constexpr std::size_t ahead = 8;  // Rounds for which a member is ready to receive.

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

class RingCall {
 public:
  RingCall(Mesh& mesh, const lockstep_buffer& data, Combine combine)
      : combine_(combine),
        element_(plugin::bytes_of_element(data.dtype)),
        ring_(data.count, mesh.rank, mesh.size, most_block_bytes / element_),
        next_((mesh.rank + 1) % mesh.size),
        previous_((mesh.rank + mesh.size - 1) % mesh.size),
        slot_(gloo::Slot::build(gloo::kAllreduceSlotPrefix, mesh.next_tag())),
        block_capacity_(std::min(most_block_bytes, plugin::bytes_of(data))),
        scratch_(std::make_unique_for_overwrite<std::byte[]>(ahead * block_capacity_)),
        sums_(mesh.buffer(data.data, plugin::bytes_of(data))),
        parts_(mesh.buffer(scratch_.get(), ahead * block_capacity_)) {}

  void run() {
    for (std::size_t turn = 0; turn < ahead; ++turn) expect(turn);
    for (std::size_t turn = 0; turn < ring_.delay(); ++turn) announce(turn);
    for (std::size_t turn = 0; turn < ring_.turns(); ++turn) {
      await(turn);
      expect(turn + ahead);
      announce(turn + ring_.delay());
    }
    for (std::size_t turn = 0; turn < ring_.turns(); ++turn)
      if (ring_.leaving(turn).count > 0) sums_->waitSend();
  }

 private:
  void announce(std::size_t turn) {
    const Ring::Block block = ring_.leaving(turn);
    if (block.count > 0) sums_->send(next_, slot_, block.begin * element_, block.count * element_);
  }

  void expect(std::size_t turn) {
    const Ring::Block block = ring_.arriving(turn);
    if (block.count == 0) return;
    if (turn < ring_.sums())
      parts_->recv(previous_, slot_, place_of(turn), block.count * element_);
    else
      sums_->recv(previous_, slot_, block.begin * element_, block.count * element_);
  }

  void await(std::size_t turn) {
    const Ring::Block block = ring_.arriving(turn);
    if (block.count == 0) return;
    if (turn >= ring_.sums()) {
      sums_->waitRecv();
      return;
    }
    parts_->waitRecv();
    std::byte* const sum = static_cast<std::byte*>(sums_->ptr) + block.begin * element_;
    combine_(sum, sum, scratch_.get() + place_of(turn), block.count);
  }

  std::size_t place_of(std::size_t turn) const { return turn % ahead * block_capacity_; }

  const Combine combine_;
  const std::size_t element_;  // Bytes.
  const Ring ring_;
  const int next_;
  const int previous_;
  const std::uint64_t slot_;
  const std::size_t block_capacity_;  // Bytes of a segment.
  const std::unique_ptr<std::byte[]> scratch_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> sums_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> parts_;  // Segments that are to be added.
};

}  // namespace

Ring::Ring(std::size_t count, int rank, int size, std::size_t most)
    : count_(count),
      rank_(static_cast<std::size_t>(rank)),
      size_(static_cast<std::size_t>(size)),
      blocks_(std::max<std::size_t>(divided_up(divided_up(count, size_), most), 2)) {}

Ring::Block Ring::sent_by(std::size_t member, std::size_t turn) const {
  if (turn >= turns()) return {};
  const std::size_t chunk = (member + 2 * size_ - turn / blocks_) % size_;
  const std::size_t number = turn % blocks_;
  const std::size_t begin = count_ * chunk / size_;
  const std::size_t count = count_ * (chunk + 1) / size_ - begin;
  const std::size_t before = count * number / blocks_;
  return {begin + before, count * (number + 1) / blocks_ - before};
}

void all_reduce_in_ring(Mesh& mesh, const lockstep_buffer& data, Combine combine) {
  RingCall(mesh, data, combine).run();
}

}  // namespace lockstep::comm::engines
