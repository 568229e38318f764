// How bytes that cross between hosts are cut into slices, and put together again.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/core/counts.h"
#include "lockstep/comm/hosts/host_map.h"

namespace lockstep {

// Elements of the parts before `part`.
std::size_t begin_of(const Counts& parts, int part);

// `count` elements of `element` bytes in slices, as even as whole cache lines allow; one entry for
// each of `owners`, those beyond `slices` get none.
Counts cut(std::size_t count, std::size_t element, int slices, int owners);

// The parts of all ranks, seen as one block for each host: its ranks' parts, one after the other.
class HostBlocks {
 public:
  // `counts` are the parts' elements, by rank. `map` must outlive it.
  HostBlocks(const HostMap& map, const Counts& counts, std::size_t element);

  std::size_t elements() const { return elements_; }  // Of all ranks.
  std::size_t elements(int host) const;               // Of its block.
  Counts parts(int host) const;                       // Of its block, by local rank.
  Counts cut_of(int host) const;                      // Of its block, by slice.
  Counts slices_by_host(int slice) const;             // That slice of each block,
  Counts elements_by_slice(int owners) const;         // and of all blocks together.

  // Between all parts in the order of the ranks, and all slices: those of slice 0, by host, then
  // those of slice 1, and so on.
  void slices_from_parts(std::byte* slices, const std::byte* parts) const;
  void parts_from_slices(std::byte* parts, const std::byte* slices) const;

 private:
  // Calls act(offset among the slices, offset among the parts, elements), for runs of both.
  template <class Act>
  void for_each_run(Act act) const;

  const HostMap& map_;
  const Counts counts_;
  const std::size_t element_;
  Counts offsets_;  // Of each rank's part.
  std::size_t elements_ = 0;
};

}  // namespace lockstep
