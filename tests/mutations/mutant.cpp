// Replaces ProcessGroup's collectives in a program by LD_PRELOAD. Calls whose description matches
// the regular expression LOCKSTEP_MUTANT exchange nothing on any rank: each continues with its own
// part. A description is "all_reduce(max) of float64: LABEL" or "barrier: LABEL". Calls within
// lockstep_comm, as in all_gather_bytes(), are not replaced.

// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <regex>
#include <string>
#include <thread>

#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

// The library's function with this name. The mangled name contains its signature: if it has
// changed, the program ends.
template <class Function>
Function real(const char* mangled) {
  void* const found = ::dlsym(RTLD_NEXT, mangled);
  if (found == nullptr) {
    std::fprintf(stderr, "mutant: no function %s\n", mangled);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

bool is_mutant(const std::string& call, const CallOptions& options) {
  const char* const pattern = std::getenv("LOCKSTEP_MUTANT");
  return pattern != nullptr &&
         std::regex_search(call + ": " + std::string(options.label), std::regex(pattern));
}

bool is_mutant(const std::string& call, const Buffer& data, const CallOptions& options) {
  return is_mutant(call + " of " + std::string(name(data.dtype)), options);
}

std::string with_op(const char* call, ReduceOp op) {
  return std::string(call) + '(' + std::string(name(op)) + ')';
}

// Where this rank's part of `all` begins, in bytes.
std::byte* own_part(const Buffer& all, const Counts& counts, const ProcessGroup& group) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::size_t before =
      counts.empty()
          ? all.count / static_cast<std::size_t>(group.size()) * rank
          : std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  return static_cast<std::byte*>(all.data) + before * size_of(all.dtype);
}

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

// Delays the ranks one after another, so that ranks which did not wait are certainly early.
void ProcessGroup::barrier(const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const CallOptions&);
  static const auto function =
      real<Function>("_ZNK8lockstep12ProcessGroup7barrierERKNS_11CallOptionsE");
  if (!is_mutant("barrier", options)) return function(this, options);
  std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank()));
}

void ProcessGroup::all_reduce(const Buffer& data, ReduceOp op, const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const Buffer&, ReduceOp, const CallOptions&);
  static const auto function = real<Function>(
      "_ZNK8lockstep12ProcessGroup10all_reduceERKNS_6BufferENS_8ReduceOpERKNS_11CallOptionsE");
  if (!is_mutant(with_op("all_reduce", op), data, options)) function(this, data, op, options);
}

void ProcessGroup::all_gather(const Buffer& input, const Buffer& output, const Counts& counts,
                              const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const Buffer&, const Buffer&, const Counts&,
                            const CallOptions&);
  static const auto function = real<Function>(
      "_ZNK8lockstep12ProcessGroup10all_gatherERKNS_6BufferES3_RKSt6vectorImSaImEERKNS_"
      "11CallOptionsE");
  if (!is_mutant("all_gather", input, options))
    return function(this, input, output, counts, options);
  std::byte* const own = own_part(output, counts, *this);
  move_bytes(own, input.data, input.bytes());
  for (auto* at = static_cast<std::byte*>(output.data); at != own; ++at) *at = std::byte{0};
  std::byte* const end = static_cast<std::byte*>(output.data) + output.bytes();
  for (std::byte* at = own + input.bytes(); at != end; ++at) *at = std::byte{0};
}

void ProcessGroup::reduce_scatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                  const Counts& counts, const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const Buffer&, const Buffer&, ReduceOp,
                            const Counts&, const CallOptions&);
  static const auto function = real<Function>(
      "_ZNK8lockstep12ProcessGroup14reduce_scatterERKNS_6BufferES3_NS_8ReduceOpERKSt6vectorImSaImEE"
      "RKNS_11CallOptionsE");
  if (!is_mutant(with_op("reduce_scatter", op), input, options))
    return function(this, input, output, op, counts, options);
  move_bytes(output.data, own_part(input, counts, *this), output.bytes());
}

void ProcessGroup::all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts,
                              const Counts& receive_counts, const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const Buffer&, const Buffer&, const Counts&,
                            const Counts&, const CallOptions&);
  static const auto function = real<Function>(
      "_ZNK8lockstep12ProcessGroup10all_to_allERKNS_6BufferES3_RKSt6vectorImSaImEES8_RKNS_"
      "11CallOptionsE");
  if (!is_mutant("all_to_all", input, options))
    return function(this, input, output, send_counts, receive_counts, options);
  std::memset(output.data, 0, output.bytes());
  std::byte* const own = own_part(output, receive_counts, *this);
  const auto rank = static_cast<std::size_t>(this->rank());
  const std::size_t count =
      send_counts.empty() ? input.count / static_cast<std::size_t>(size()) : send_counts[rank];
  move_bytes(own, own_part(input, send_counts, *this), count * size_of(input.dtype));
}

}  // namespace lockstep
