// Cuts data between hosts into slices, and joins them again.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/counts.h"
#include "lockstep/comm/hosts/host_map.h"

namespace lockstep {

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
  Counts parts(int host) const;                       // Elements of the block's parts, by local
                                                      // rank.
  Counts cut_of(int host) const;                      // Elements of the block's slices.
  Counts slices_by_host(int slice) const;             // Elements of one slice in each block.
  Counts elements_by_slice(int owners) const;         // Elements of each slice in all blocks
                                                      // together.

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

}  // namespace lockstep
