// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/registered_rooms.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"

namespace lockstep::c10d {
namespace {

constexpr std::size_t whole_pieces = std::size_t{1} << 20;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + whole_pieces - 1) / whole_pieces * whole_pieces;
}

std::byte* begin_of(const RegisteredMemory& piece) { return static_cast<std::byte*>(piece.data()); }

// Memory for a copy of a piece; MAP_FAILED if there is none. Lies in huge pages as `piece` does: a
// copy takes a quarter of the time, and so does the fork. Pages that nobody writes take no memory.
void* room_for_copy(const RegisteredMemory& piece) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  void* const all = ::mmap(nullptr, piece.bytes() + huge_page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return all;
  const auto begin = reinterpret_cast<std::uintptr_t>(all);
  const std::size_t before = (reinterpret_cast<std::uintptr_t>(piece.data()) - begin) % huge_page;
  auto* const data = static_cast<std::byte*>(all) + before;
  if (before > 0) ::munmap(all, before);
  ::munmap(data + piece.bytes(), huge_page - before);
  ::madvise(data, piece.bytes(), MADV_HUGEPAGE);
  return data;
}

}  // namespace

void RegisteredRooms::open(Source source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
  pieces_.clear();
  total_ = 0;
  is_short_ = false;
  owner_ = this_process();
}

void RegisteredRooms::close() {
  Source source;  // Goes outside of the lock, with what it keeps alive.
  const std::lock_guard lock(mutex_);
  source.swap(source_);
  pieces_.clear();
  total_ = 0;
  owner_ = 0;
}

bool RegisteredRooms::is_open() const {
  const pid_t owner = owner_.load(std::memory_order_relaxed);
  return owner != 0 && owner == this_process();
}

void* RegisteredRooms::take(std::size_t bytes, std::size_t limit) {
  const std::lock_guard lock(mutex_);
  if (!is_open()) return nullptr;
  if (void* const room = take_from_pieces(bytes)) return room;
  if (is_short_ || total_ + next_piece(bytes) > limit) return nullptr;
  try {
    grow(bytes);
  } catch (const Error& error) {
    is_short_ = true;
    log(LogLevel::info, std::string("tensors get ordinary memory from now on: ") + error.what());
    return nullptr;
  }
  return take_from_pieces(bytes);
}

void* RegisteredRooms::require(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  lockstep::require(is_open(),
                    "registered memory: this process is in no group of backend lockstep");
  if (void* const room = take_from_pieces(bytes)) return room;
  grow(bytes);
  return take_from_pieces(bytes);
}

void* RegisteredRooms::take_from_pieces(std::size_t bytes) {
  for (const auto& piece : pieces_)
    if (void* const data = piece->take(bytes)) {
      rooms_.emplace(data, Room{piece, bytes});
      return data;
    }
  return nullptr;
}

void RegisteredRooms::grow(std::size_t bytes) {
  const std::size_t size = next_piece(bytes);
  pieces_.push_back(std::make_shared<RegisteredRegion>(source_(size)));
  total_ += size;
}

// As much again as there is, so that many tensors need few pieces.
std::size_t RegisteredRooms::next_piece(std::size_t bytes) const {
  return std::max(rounded_up(RegisteredRegion::room_bytes(bytes)),
                  std::clamp(total_, least_piece, most_piece));
}

bool RegisteredRooms::give_back(void* data) {
  std::shared_ptr<RegisteredRegion> piece;  // May be the last to hold it: goes after the lock.
  const std::lock_guard lock(mutex_);
  const auto found = rooms_.find(data);
  if (found == rooms_.end()) return false;
  piece = std::move(found->second.piece);
  rooms_.erase(found);
  piece->give_back(data);
  return true;
}

bool RegisteredRooms::contains(const void* data) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const auto& piece) {
    const auto offset = static_cast<const std::byte*>(data) - begin_of(piece->memory());
    return offset >= 0 && static_cast<std::size_t>(offset) < piece->memory().bytes();
  });
}

// --- fork() --------------------------------------------------------------------------------------

// Holds the lock until the fork is over, so that the child finds it open and all rooms in order.
void RegisteredRooms::before_fork() {
  mutex_.lock();
  for (const auto& [data, room] : rooms_) {
    const RegisteredMemory& piece = room.piece->memory();
    if (copies_.empty() || copies_.back().piece != &piece)
      copies_.push_back({&piece, room_for_copy(piece)});
    void* const copy = copies_.back().data;
    if (copy == MAP_FAILED) continue;
    const std::ptrdiff_t offset = static_cast<std::byte*>(data) - begin_of(piece);
    std::memcpy(static_cast<std::byte*>(copy) + offset, data, room.bytes);
  }
}

void RegisteredRooms::after_fork_in_parent() {
  for (const Copy& copy : copies_)
    if (copy.data != MAP_FAILED) ::munmap(copy.data, copy.piece->bytes());
  copies_.clear();
  mutex_.unlock();
}

// Without memory for a copy, a child that touches a room gets SIGSEGV and harms nobody else.
void RegisteredRooms::after_fork_in_child() {
  for (const Copy& copy : copies_) {
    const std::size_t bytes = copy.piece->bytes();
    const bool is_moved =
        copy.data != MAP_FAILED && ::mremap(copy.data, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                            copy.piece->data()) != MAP_FAILED;
    if (!is_moved)
      ::mmap(copy.piece->data(), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  copies_.clear();
  mutex_.unlock();
}

}  // namespace lockstep::c10d
