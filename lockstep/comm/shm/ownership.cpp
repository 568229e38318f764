// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/ownership.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {

#if defined(__x86_64__)
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t block_bytes = 4 * line;
constexpr std::size_t ahead = 1024;  // Distance between the requested line and the line being read.

// Processors with AVX2 support PREFETCHW or ignore it.
__attribute__((target("avx2,prfchw"))) void take_over_connections(const std::byte* from,
                                                                  std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += line) __builtin_prefetch(from + i, 1, 3);
}

__attribute__((target("avx2,prfchw"))) void copy_block(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < block_bytes; i += sizeof(__m256i)) {
    const auto part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), part);
  }
}

__attribute__((target("avx2,prfchw"))) void copy_lines(std::byte* to, const std::byte* from,
                                                       std::size_t bytes) {
  take_over_connections(from, std::min(ahead, bytes));
  std::size_t i = 0;
  for (; i + block_bytes <= bytes; i += block_bytes) {
    if (i + ahead + block_bytes <= bytes) take_over_connections(from + i + ahead, block_bytes);
    copy_block(to + i, from + i);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

__attribute__((target("avx2,prfchw"))) void stream_block(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < block_bytes; i += sizeof(__m256i)) {
    const auto part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), part);
  }
}

__attribute__((target("avx2,prfchw"))) void stream_connections(std::byte* to, const std::byte* from,
                                                               std::size_t bytes,
                                                               bool taking_over) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % line;
  std::size_t i = std::min(bytes, (line - misaligned) % line);
  std::memcpy(to, from, i);
  for (; i + block_bytes <= bytes; i += block_bytes) {
    if (taking_over && i + ahead + block_bytes <= bytes)
      take_over_connections(from + i + ahead, block_bytes);
    stream_block(to + i, from + i);
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();  // Before the caller sets a flag for another rank.
}

__attribute__((target("avx2,prfchw"))) void stream_pages(std::byte* to, const std::byte* from,
                                                         std::size_t bytes) {
  constexpr std::size_t page = 4096, pages = 4;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % line;
  std::size_t i = std::min(bytes, (line - misaligned) % line);
  std::memcpy(to, from, i);
  for (; i + pages * page <= bytes; i += pages * page)
    for (std::size_t block = i; block < i + page; block += block_bytes)
      for (std::size_t at = block; at < block + pages * page; at += page)
        stream_block(to + at, from + at);
  stream_connections(to + i, from + i, bytes - i, false);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

}  // namespace

void take_over(const std::byte* from, std::size_t bytes) {
  if (has_avx2()) take_over_connections(from, bytes);
}

void copy_taking_over(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  has_avx2() ? copy_lines(to, from, bytes) : void(std::memcpy(to, from, bytes));
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes, bool taking_over) {
  if (bytes == 0) return;
  has_avx2() ? stream_connections(to, from, bytes, taking_over)
             : void(std::memcpy(to, from, bytes));
}

void copy_pages_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  has_avx2() ? stream_pages(to, from, bytes) : void(std::memcpy(to, from, bytes));
}
#else
void copy_pages_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes, bool) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void take_over(const std::byte*, std::size_t) {}

void copy_taking_over(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#endif

}  // namespace lockstep
