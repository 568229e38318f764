// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/peer_memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random_number.h"
#include "lockstep/base/variables.h"

namespace lockstep::comm {
namespace {

bool is_wanted() {
  const char* const text = read_variable(PeerMemory::variable);
  const std::string_view value = text == nullptr ? "" : text;
  require(value.empty() || value == "0" || value == "1", [&] {
    return std::string(PeerMemory::variable) + "='" + std::string(value) + "' is neither 0 nor 1";
  });
  return value != "0";
}

}  // namespace

PeerMemory::PeerMemory(std::shared_ptr<Peers> peers, const GroupSegment& segment, std::string group)
    : peers_(std::move(peers)),
      segment_(segment),
      group_(std::move(group)),
      number_(random_number() | 1) {
  if (!is_wanted() || !peers_->may_read()) {
    is_readable_ = false;
    return;
  }
  RankBlock& block = segment_.block(peers_->rank());
  block.number = number_;
  block.number_at = reinterpret_cast<std::uintptr_t>(&number_);
}

bool PeerMemory::is_readable() {
  if (is_readable_) return *is_readable_;
  bool all = peers_->size() > 1;
  for (int peer = 0; peer < peers_->size() && all; ++peer)
    all = peer == peers_->rank() || can_read(peer);
  is_readable_ = all;
  tell(all ? "reads" : "cannot read");
  return all;
}

// Permanent: ranks cannot distinguish too little memory from a refusing kernel, and would start
// over in each call.
void PeerMemory::stop() {
  if (is_readable_.value_or(false)) tell("no longer reads");
  is_readable_ = false;
}

bool PeerMemory::read(int rank, std::byte* to, std::uint64_t from, std::size_t bytes) const {
  const RankBlock& block = segment_.block(rank);
  const Mark mark{.number = block.number, .address = block.number_at};
  return mark.number != 0 && peers_->read(rank, mark, to, from, bytes);
}

bool PeerMemory::can_read(int rank) const {
  std::byte first{};
  return read(rank, &first, segment_.block(rank).number_at, 1);
}

void PeerMemory::tell(const char* what) const {
  log(LogLevel::info, fmt::format("group {}: rank {} {} its peers' memory", group_,
                                  peers_->number(peers_->rank()), what));
}

}  // namespace lockstep::comm
