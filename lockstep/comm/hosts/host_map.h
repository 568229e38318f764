// Maps a group's ranks to hosts, and cuts the data that hosts exchange into slices.
//
// Local rank s owns slice s (docs/algorithms.md).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::comm {

class HostMap {
 public:
  // Ranks with equal numbers in `host_of` are on one host.
  HostMap(const std::vector<int>& host_of, int rank);

  // Hosts are numbered in the order of their first rank.
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return place_of(rank).host; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }

  int host() const { return mine_.host; }
  int local_rank() const { return mine_.local; }
  int local_size() const { return static_cast<int>(ranks(host()).size()); }
  int local_rank_of(int rank) const { return place_of(rank).local; }

  int slices() const { return slices_; }
  bool owns_slice() const { return local_rank() < slices_; }

  // The members of a slice's communicator, by host.
  std::vector<int> slice_ranks(int slice) const;

 private:
  struct At {
    int host = 0;
    int local = 0;
  };
  const At& place_of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }

  std::vector<std::vector<int>> ranks_;
  std::vector<At> places_;
  At mine_;
  int slices_ = 1;
};

std::size_t begin_of(const Counts& parts, int part);

// Divides `count` elements of `element` bytes into equal slices of whole cache lines. The last ones
// may be shorter or empty. Returns `owners` entries; those beyond `slices` are 0.
Counts cut(std::size_t count, std::size_t element, int slices, int owners);

// One block per host: its ranks' parts, contiguous. Counts are in elements.
class HostBlocks {
 public:
  // `map` must outlive this object.
  HostBlocks(const HostMap& map, const Counts& counts, std::size_t element);

  std::size_t elements() const { return elements_; }
  std::size_t elements(int host) const;
  Counts parts(int host) const;  // By local rank.
  Counts cut_of(int host) const;
  Counts slices_by_host(int slice) const;      // The slice in each block.
  Counts elements_by_slice(int owners) const;  // Each slice, in all blocks.

  // Copy between two layouts: parts by rank; slice 0 of each host's block, then slice 1, and so on.
  void slices_from_parts(std::byte* slices, const std::byte* parts) const;
  void parts_from_slices(std::byte* parts, const std::byte* slices) const;

 private:
  // Calls act(offset in the slices, offset in the parts, elements) for each contiguous run.
  template <class Act>
  void for_each_run(Act act) const;

  const HostMap& map_;
  const Counts counts_;
  const std::size_t element_;
  Counts offsets_;  // By rank.
  std::size_t elements_ = 0;
};

}  // namespace lockstep::comm
