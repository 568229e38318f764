// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/process_group.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective_calls.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/job/host_session.h"

namespace lockstep {
ProcessGroup::ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

ProcessGroup::State& ProcessGroup::state() const {
  require(state_ != nullptr, "this ProcessGroup was moved from");
  return *state_;
}

int ProcessGroup::rank() const { return state().identity().rank; }
int ProcessGroup::size() const { return state().identity().size; }
int ProcessGroup::local_rank() const { return state().identity().local.rank; }
int ProcessGroup::local_size() const { return state().identity().local.size; }
const std::string& ProcessGroup::name() const { return state().identity().name; }
const std::string& ProcessGroup::backend() const { return state().identity().backend; }

void run_collective(const ProcessGroup& group, Operation operation,
                    const CollectiveArguments& given, const CallOptions& options) {
  GroupAccess::state_of(group).run(operation, given, options);
}

Work run_collective_async(const ProcessGroup& group, Operation operation,
                          const CollectiveArguments& given, const CallOptions& options) {
  return GroupAccess::state_of(group).submit(operation, given, options);
}

void ProcessGroup::all_to_all(const Buffer& input, const Buffer& output, const Counts& send_counts,
                              const Counts& receive_counts, const CallOptions& options) const {
  const Counts pairs = comm::pairs_of(send_counts, receive_counts, size());
  state().run(Operation::all_to_all, {.input = input, .output = output, .counts = pairs}, options);
}

Work ProcessGroup::all_to_all_async(const Buffer& input, const Buffer& output,
                                    const Counts& send_counts, const Counts& receive_counts,
                                    const CallOptions& options) const {
  const Counts pairs = comm::pairs_of(send_counts, receive_counts, size());
  return state().submit(Operation::all_to_all, {.input = input, .output = output, .counts = pairs},
                        options);
}

void ProcessGroup::send(const Buffer& data, int peer, std::int64_t tag,
                        const CallOptions& options) const {
  state().messages().run(comm::message_of(Operation::send, data, peer, tag, state().identity()),
                         options);
}

Work ProcessGroup::send_async(const Buffer& data, int peer, std::int64_t tag,
                              const CallOptions& options) const {
  return state().messages().start(
      comm::message_of(Operation::send, data, peer, tag, state().identity()), options, state_);
}

Source ProcessGroup::recv(const Buffer& data, int peer, std::int64_t tag,
                          const CallOptions& options) const {
  return state().messages().run(
      comm::message_of(Operation::recv, data, peer, tag, state().identity()), options);
}

Work ProcessGroup::recv_async(const Buffer& data, int peer, std::int64_t tag,
                              const CallOptions& options) const {
  return state().messages().start(
      comm::message_of(Operation::recv, data, peer, tag, state().identity()), options, state_);
}

std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks,
                                                    const CallOptions& options) const {
  const std::optional<int> place = comm::place_in(ranks, state().identity(), "new_group");
  const std::optional<int> color = place ? std::optional(0) : std::nullopt;
  auto made = state().split(color, place.value_or(0), comm::layout_of_ranks(ranks), options);
  if (!made) return std::nullopt;
  return ProcessGroup(std::move(made));
}

ProcessGroup ProcessGroup::split(int color, int key, const CallOptions& options) const {
  return ProcessGroup(state().split(color, key, 0, options));
}

ProcessGroup ProcessGroup::group_of(const std::vector<int>& ranks, std::string_view name,
                                    const CallOptions& options) const {
  require(comm::place_in(ranks, state().identity(), "group_of").has_value(),
          [&] { return fmt::format("group_of: rank {} is not one of the ranks", rank()); });
  require(!name.empty(), "group_of: the group needs a name");
  return ProcessGroup(state().group_of(ranks, name, options));
}

RegisteredMemory ProcessGroup::allocate(std::size_t bytes, const CallOptions& options) const {
  require(bytes <= std::numeric_limits<std::size_t>::max() / 2 / static_cast<std::size_t>(size()),
          [&] { return fmt::format("allocate: {} bytes for each of {} ranks", bytes, size()); });
  return state().allocate(Operation::allocate, bytes, options);
}

RegisteredMemory ProcessGroup::allocate_local(std::size_t bytes) const {
  require(bytes <= std::numeric_limits<std::size_t>::max() / 2,
          [&] { return fmt::format("allocate_local: {} bytes", bytes); });
  return state().allocate_local(bytes);
}

RegisteredMemory ProcessGroup::allocate_shared(std::size_t bytes,
                                               const CallOptions& options) const {
  require(bytes <= std::numeric_limits<std::size_t>::max() / 2,
          [&] { return fmt::format("allocate_shared: {} bytes", bytes); });
  return state().allocate(Operation::allocate_shared, bytes, options);
}

void ProcessGroup::on_preemption() const {
  const auto rank_context = state().rank_context();
  keep_preemption_signals();
  // First: from now on, no such signal ends the process.
  rank_context->expect_preemption();
}

bool ProcessGroup::preempted(const CallOptions& options) const {
  require(keeps_preemption_signals(), "preempted: call on_preemption() first");
  std::uint8_t any = preemption_signalled();
  CallOptions own = options;
  own.label = "preempted";
  all_reduce({.data = &any, .count = 1, .dtype = DType::uint8}, ReduceOp::max, own);
  if (any != 0) state().rank_context()->agree_on_preemption();
  return any != 0;
}

void ProcessGroup::set_step(std::uint64_t step) const { state().rank_context()->set_step(step); }

void ProcessGroup::abort(std::string_view reason) const { state().abort(reason); }

std::string ProcessGroup::flight_record() const { return state().flight_record(); }

void destroy_process_group(ProcessGroup& group) { group.state().destroy(); }

void leave_process_group(ProcessGroup& group) { group.state().leave(); }

}  // namespace lockstep
