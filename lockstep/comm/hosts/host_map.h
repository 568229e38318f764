// Maps the ranks of a group to hosts, and divides the data between hosts into slices.
//
// The number of slices is the smallest number of ranks on a host. The local ranks s of all hosts
// exchange slice s, so each byte crosses a host's link once. Surplus local ranks own no slice.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::comm {

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

// --- Slices --------------------------------------------------------------------------------------

// Returns the number of elements in the parts before `part`.
std::size_t begin_of(const Counts& parts, int part);

// Divides `count` elements of `element` bytes into slices, as evenly as whole cache lines allow.
// Returns one entry for each of `owners`; those beyond `slices` get 0.
Counts cut(std::size_t count, std::size_t element, int slices, int owners);

// The parts of all ranks as one block per host: its ranks' parts, contiguous.
class HostBlocks {
 public:
  // `counts` are the elements of each rank's part. `map` must outlive this object.
  HostBlocks(const HostMap& map, const Counts& counts, std::size_t element);

  std::size_t elements() const { return elements_; }  // All ranks' elements.
  std::size_t elements(int host) const;               // Elements of that host's block.
  Counts parts(int host) const;                       // Elements of its parts, by local rank.
  Counts cut_of(int host) const;                      // Elements of the block's slices.
  Counts slices_by_host(int slice) const;             // Elements of one slice in each block.
  Counts elements_by_slice(int owners) const;         // Elements of each slice, in all blocks.

  // Copy between all parts in rank order, and all slices: those of slice 0 by host, then those of
  // slice 1, and so on.
  void slices_from_parts(std::byte* slices, const std::byte* parts) const;
  void parts_from_slices(std::byte* parts, const std::byte* slices) const;

 private:
  // Calls act(offset in the slices, offset in the parts, elements) for each contiguous run.
  template <class Act>
  void for_each_run(Act act) const;

  const HostMap& map_;
  const Counts counts_;
  const std::size_t element_;
  Counts offsets_;  // Offset of each rank's part.
  std::size_t elements_ = 0;
};

}  // namespace lockstep::comm
