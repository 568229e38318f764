// Maps the ranks of a group to hosts, and cuts the data between hosts into slices.
//
// The number of slices is the smallest number of ranks on a host. The local ranks s of all hosts
// exchange slice s, so each byte crosses a host's link once. Surplus local ranks own no slice.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

class HostMap {
 public:
  // `host_of` has a number for each rank of the group; equal numbers mean one host.
  HostMap(const std::vector<int>& host_of, int rank);

  // Hosts are numbered in the order of their first rank.
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return place_of(rank).host; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }

  // This rank's host, and its rank there.
  int host() const { return mine_.host; }
  int local_rank() const { return mine_.local; }
  int local_size() const { return static_cast<int>(ranks(host()).size()); }
  int local_rank_of(int rank) const { return place_of(rank).local; }

  int slices() const { return slices_; }
  bool owns_slice() const { return local_rank() < slices_; }

  // Returns the members of a slice's communicator, by host.
  std::vector<int> slice_ranks(int slice) const;

 private:
  struct At {
    int host = 0;
    int local = 0;
  };
  const At& place_of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }

  std::vector<std::vector<int>> ranks_;  // By host.
  std::vector<At> places_;               // By rank.
  At mine_;
  int slices_ = 1;
};

}  // namespace lockstep
