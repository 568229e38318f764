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
#include <span>
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

// Where this rank's part of `all` begins, in bytes.
std::byte* own_part(const Buffer& all, std::span<const std::size_t> counts,
                    const ProcessGroup& group) {
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

// A buffer that this rank has: gather and scatter use the other on the root only.
const Buffer& data_of(Operation operation, const CollectiveArguments& given) {
  return shape_of(operation) == OperationShape::collects ? given.input : given.output;
}

std::string description_of(Operation operation, const CollectiveArguments& given) {
  std::string text(name(operation));
  if (reduces(operation)) text += '(' + std::string(name(given.op)) + ')';
  if (shape_of(operation) == OperationShape::barrier) return text;
  return text + " of " + std::string(name(data_of(operation, given).dtype));
}

// Replaces all parts of `output` but this rank's own by zeros.
void gather_alone(const ProcessGroup& group, const CollectiveArguments& given) {
  const Buffer& input = given.input;
  const Buffer& output = given.output;
  if (output.data == nullptr) return;
  std::byte* const own = own_part(output, given.counts, group);
  move_bytes(own, input.data, input.bytes());
  for (auto* at = static_cast<std::byte*>(output.data); at != own; ++at) *at = std::byte{0};
  std::byte* const end = static_cast<std::byte*>(output.data) + output.bytes();
  for (std::byte* at = own + input.bytes(); at != end; ++at) *at = std::byte{0};
}

void take_own_part(const ProcessGroup& group, const CollectiveArguments& given) {
  const Buffer& output = given.output;
  if (given.input.data != nullptr)
    return move_bytes(output.data, own_part(given.input, given.counts, group), output.bytes());
  std::memset(output.data, 0, output.bytes());
}

}  // namespace

void run_collective(const ProcessGroup& group, Operation operation,
                    const CollectiveArguments& given, const CallOptions& options) {
  using Function =
      void (*)(const ProcessGroup&, Operation, const CollectiveArguments&, const CallOptions&);
  static const auto function = real<Function>(
      "_ZN8lockstep14run_collectiveERKNS_12ProcessGroupENS_9OperationERKNS_19CollectiveArgumentsE"
      "RKNS_11CallOptionsE");
  const OperationShape shape = shape_of(operation);
  if (shape == OperationShape::exchanges || !is_mutant(description_of(operation, given), options))
    return function(group, operation, given, options);
  // Ranks that did not wait are certainly early if the others start one after another.
  if (shape == OperationShape::barrier)
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * group.rank()));
  else if (shape == OperationShape::collects)
    gather_alone(group, given);
  else if (shape == OperationShape::distributes)
    take_own_part(group, given);
}

void ProcessGroup::all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts,
                              const Counts& receive_counts, const CallOptions& options) const {
  using Function = void (*)(const ProcessGroup*, const Buffer&, const Buffer&, const Counts&,
                            const Counts&, const CallOptions&);
  static const auto function = real<Function>(
      "_ZNK8lockstep12ProcessGroup10all_to_allERKNS_6BufferES3_RKSt6vectorImSaImEES8_RKNS_"
      "11CallOptionsE");
  const std::string description =
      description_of(Operation::all_to_all, {.input = input, .output = output});
  if (!is_mutant(description, options))
    return function(this, input, output, send_counts, receive_counts, options);
  std::memset(output.data, 0, output.bytes());
  std::byte* const own = own_part(output, receive_counts, *this);
  const auto rank = static_cast<std::size_t>(this->rank());
  const std::size_t count =
      send_counts.empty() ? input.count / static_cast<std::size_t>(size()) : send_counts[rank];
  move_bytes(own, own_part(input, send_counts, *this), count * size_of(input.dtype));
}

}  // namespace lockstep
