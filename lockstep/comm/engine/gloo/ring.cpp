// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/ring.h"

#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <memory>

#include "lockstep/comm/engine/plugin_parts.h"

namespace lockstep::comm::engines {
namespace {

// In Gloo's own ring, the calling thread writes to the connection. Gloo's thread, which should read
// from it, spins until that is done: for a whole time slice if it has taken the caller's core. Here
// a member mostly announces a piece before the next member is ready for it, and then it is Gloo's
// thread that writes. Pieces of 64 KiB, 256 KiB and 512 KiB were not faster on a link as fast as
// memory, nor were four pieces ahead. On 1 Gbit/s it made no difference.
constexpr std::size_t most_piece_bytes = std::size_t{128} << 10;
constexpr std::size_t ahead = 8;  // Turns for which a member is ready to receive.

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

Ring::Ring(std::size_t count, int rank, int size, std::size_t most)
    : count_(count),
      rank_(static_cast<std::size_t>(rank)),
      size_(static_cast<std::size_t>(size)),
      pieces_(std::max<std::size_t>(divided_up(divided_up(count, size_), most), 2)) {}

// Returns a piece of the chunk that lies so many chunks before this member's own.
Ring::Piece Ring::piece(std::size_t chunks_back, std::size_t number) const {
  const std::size_t chunk = (rank_ + 2 * size_ - chunks_back) % size_;
  const std::size_t begin = count_ * chunk / size_;
  const std::size_t count = count_ * (chunk + 1) / size_ - begin;
  const std::size_t before = count * number / pieces_;
  return {begin + before, count * (number + 1) / pieces_ - before};
}

void all_reduce_in_ring(Mesh& mesh, const lockstep_buffer& data, Combine combine) {
  const std::size_t element = plugin::bytes_of_element(data.dtype);
  const std::size_t most = most_piece_bytes / element;
  const Ring ring(data.count, mesh.rank, mesh.size, most);
  const int next = (mesh.rank + 1) % mesh.size;
  const int previous = (mesh.rank + mesh.size - 1) % mesh.size;
  const std::uint64_t slot = gloo::Slot::build(gloo::kAllreduceSlotPrefix, mesh.next_tag());

  const std::size_t room = std::min(most, data.count) * element;  // For a piece.
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(ahead * room);
  const auto sums = mesh.buffer(data.data, plugin::bytes_of(data));
  const auto parts = mesh.buffer(scratch.get(), ahead * room);
  const auto place_of = [&](std::size_t turn) { return turn % ahead * room; };

  const auto announce = [&](std::size_t turn) {
    if (turn >= ring.turns()) return;
    const Ring::Piece piece = ring.leaving(turn);
    if (piece.count > 0) sums->send(next, slot, piece.begin * element, piece.count * element);
  };
  const auto expect = [&](std::size_t turn) {
    if (turn >= ring.turns()) return;
    const Ring::Piece piece = ring.arriving(turn);
    if (piece.count == 0) return;
    if (turn < ring.sums())
      parts->recv(previous, slot, place_of(turn), piece.count * element);
    else
      sums->recv(previous, slot, piece.begin * element, piece.count * element);
  };
  const auto await = [&](std::size_t turn) {
    const Ring::Piece piece = ring.arriving(turn);
    if (piece.count == 0) return;
    if (turn >= ring.sums()) {
      sums->waitRecv();
      return;
    }
    parts->waitRecv();
    std::byte* const sum = static_cast<std::byte*>(data.data) + piece.begin * element;
    combine(sum, sum, scratch.get() + place_of(turn), piece.count);
  };

  for (std::size_t turn = 0; turn < ahead; ++turn) expect(turn);
  for (std::size_t turn = 0; turn < ring.delay(); ++turn) announce(turn);
  for (std::size_t turn = 0; turn < ring.turns(); ++turn) {
    await(turn);
    expect(turn + ahead);
    announce(turn + ring.delay());
  }
  for (std::size_t turn = 0; turn < ring.turns(); ++turn)
    if (ring.leaving(turn).count > 0) sums->waitSend();
}

}  // namespace lockstep::comm::engines
