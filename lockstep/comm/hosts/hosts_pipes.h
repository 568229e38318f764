// A group's pipes: shared memory to ranks of this host, connections to all others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/hosts/host_map.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/tcp/connections.h"

namespace lockstep::comm {

class HostsPipes final : public Pipes {
 public:
  // `map` must outlive it.
  HostsPipes(const HostMap& map, int rank, int size, std::shared_ptr<ShmBackend> local,
             std::shared_ptr<Channels> channels)
      : map_(map),
        rank_(rank),
        size_(size),
        local_(std::move(local)),
        channels_(std::move(channels)) {
    channels_->on_message([here = std::weak_ptr(local_), me = map_.local_rank()] {
      if (const auto strong = here.lock()) strong->pipes().ring(me);
    });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  PipeWriter& to(int peer) override {
    return is_here(peer) ? local_->pipes().to(map_.local_rank_of(peer)) : channels_->to(peer);
  }
  PipeReader* from(int peer) override {
    return is_here(peer) ? local_->pipes().from(map_.local_rank_of(peer)) : channels_->from(peer);
  }
  void release(int peer) override {
    if (is_here(peer)) local_->pipes().release(map_.local_rank_of(peer));
  }
  bool is_opening(int peer) const override {
    return is_here(peer) && local_->pipes().is_opening(map_.local_rank_of(peer));
  }
  bool has_left(int peer) const override {
    return is_here(peer) ? local_->pipes().has_left(map_.local_rank_of(peer))
                         : channels_->has_left(peer);
  }
  std::optional<Failure> why_left(int peer) const override {
    return is_here(peer) ? local_->pipes().why_left(map_.local_rank_of(peer)) : std::nullopt;
  }
  void ring(int peer) override {
    if (is_here(peer)) local_->pipes().ring(map_.local_rank_of(peer));
  }
  std::uint32_t bell() const override { return local_->pipes().bell(); }
  void await(std::uint32_t seen) override { local_->pipes().await(seen); }
  bool is_aborted() const override { return local_->pipes().is_aborted(); }
  void throw_if_over(const std::string& context) const override {
    local_->pipes().throw_if_over(context);
  }

 private:
  bool is_here(int peer) const { return map_.host_of(peer) == map_.host(); }

  const HostMap& map_;
  const int rank_;
  const int size_;
  const std::shared_ptr<ShmBackend> local_;
  const std::shared_ptr<Channels> channels_;
};

}  // namespace lockstep::comm
