// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/device_backend.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/reduce/compose.h"

namespace lockstep::comm {
namespace {

constexpr int no_device = -1;

// The barrier's layout carries the operation it represents, in bits that messages never show.
constexpr std::uint64_t operation_shift = 8;
constexpr std::uint64_t operation_mask = 0xffULL << operation_shift;

Signature as_barrier(Signature signature) {
  signature.layout = (signature.layout & ~operation_mask) | layout_on_cuda |
                     static_cast<std::uint64_t>(signature.operation) << operation_shift;
  signature.operation = Operation::barrier;
  return signature;
}

bool stands_for_another(const Signature& signature) {
  return signature.operation == Operation::barrier && (signature.layout & layout_on_cuda) != 0;
}

Signature what_it_stands_for(Signature signature) {
  signature.operation =
      static_cast<Operation>((signature.layout & operation_mask) >> operation_shift);
  signature.layout &= ~operation_mask;
  return signature;
}

const Buffer& on_device(const Collective& collective) {
  return collective.output.device != DeviceKind::cpu ? collective.output : collective.input;
}

// For a rank without a buffer, an empty one on the device of `other`.
Buffer placed(Buffer buffer, const Buffer& other) {
  if (buffer.device != DeviceKind::cpu) return buffer;
  buffer.device = other.device;
  buffer.device_index = other.device_index;
  buffer.stream = other.stream;
  return buffer;
}

// Rethrows the barrier's `error` as one of `operation`, which it represents.
[[noreturn]] void throw_as(Operation operation, const Error& error) {
  std::string text = bare_text(error);
  const std::string_view barrier = name(Operation::barrier);
  if (text.starts_with(barrier)) text.replace(0, barrier.size(), name(operation));
  if (!error.failure()) throw_again(error, text);
  const std::string who = ": " + describe(*error.failure());
  if (text.ends_with(who)) text.resize(text.size() - who.size());
  throw Error(text, *error.failure());
}

}  // namespace

DeviceBackend::DeviceBackend(std::unique_ptr<Backend> inner, DeviceMembers members,
                             std::shared_ptr<const DeviceEngine> engine)
    : inner_(std::move(inner)),
      members_(std::move(members)),
      engine_(std::move(engine)),
      said_(members_.world_ranks.size()),
      device_(no_device) {}

std::string DeviceBackend::refusal_on_device(const Collective& collective) {
  const Signature& signature = collective.signature;
  const auto why = cuda_unsupported(signature.operation, signature.dtype, signature.op);
  if (!why.empty()) return std::string(why);
  const int index = on_device(collective).device_index;
  int mine = device_;
  if (mine == no_device)
    if (auto none = engine_->why_not(); !none.empty()) return none;
  if (reduces(signature.operation) &&
      !engine_->supports(signature.operation, signature.dtype, signature.op))
    return fmt::format("the engine for CUDA memory has no {} of {}", lockstep::name(signature.op),
                       lockstep::name(signature.dtype));
  if (mine == no_device && device_.compare_exchange_strong(mine, index)) return {};
  if (mine == index) return {};
  return fmt::format("this rank uses CUDA device {} in group {}, and cannot use {} beside it", mine,
                     members_.name, index);
}

void DeviceBackend::enter(const Collective& collective) {
  try {
    if (!is_on_device(collective)) return inner_->enter(collective);
    Collective hidden = collective;
    hidden.signature = as_barrier(collective.signature);
    hidden.input = hidden.output = {.dtype = collective.signature.dtype};
    hidden.counts = {};
    inner_->enter(hidden);
  } catch (const Error& error) {
    cancel();  // The device may wait for a lost rank.
    if (!is_on_device(collective)) throw;
    throw_as(collective.signature.operation, error);
  }
}

const Signature& DeviceBackend::entered(int rank) const {
  const Signature& told = inner_->entered(rank);
  if (!stands_for_another(told)) return told;
  return said_[static_cast<std::size_t>(rank)] = what_it_stands_for(told);
}

void DeviceBackend::run(const Collective& collective) {
  if (!is_on_device(collective)) return inner_->run(collective);
  if (collective.signature.count == 0) return;
  try {
    run_on_device(collective);
  } catch (...) {
    cancel();
    throw;
  }
}

std::unique_ptr<Backend> DeviceBackend::among(const std::vector<int>& ranks,
                                              const std::string& group,
                                              std::chrono::milliseconds timeout,
                                              const std::function<void()>& watch) {
  DeviceMembers members{.name = group};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    members.world_ranks.push_back(members_.world_ranks[static_cast<std::size_t>(ranks[r])]);
    if (ranks[r] == members_.rank) members.rank = static_cast<int>(r);
  }
  return std::make_unique<DeviceBackend>(inner_->among(ranks, group, timeout, watch),
                                         std::move(members), engine_);
}

void DeviceBackend::abort(const AbortReason& why) {
  inner_->abort(why);
  cancel();
}

void DeviceBackend::cancel() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  if (communicator_) communicator_->cancel();
}

// Collective: all ranks enter it first with the same call.
DeviceCommunicator& DeviceBackend::communicator(const Collective& collective) {
  if (communicator_) return *communicator_;  // Only this thread changes it.
  auto made = engine_->make(members_, on_device(collective).device_index, in(collective.timeout));
  const std::lock_guard lock(mutex_);
  communicator_ = std::move(made);
  if (is_over_) communicator_->cancel();
  return *communicator_;
}

// NCCL lacks gather and scatter. Reductions are never composed, which would reduce on the host:
// refusal_on_device() returns a text for those that the engine lacks.
void DeviceBackend::run_on_device(const Collective& collective) {
  DeviceCommunicator& device = communicator(collective);
  const Signature& signature = collective.signature;
  const auto native = [&](const Collective& one) {
    Collective whole = one;
    if (shape_of(one.signature.operation) != OperationShape::in_place) {
      whole.input = placed(one.input, on_device(collective));
      whole.output = placed(one.output, on_device(collective));
    }
    device.run(whole);
  };
  if (reduces(signature.operation) ||
      device.supports(signature.operation, signature.dtype, signature.op))
    native(collective);
  else
    compose(native, collective, members_.rank, static_cast<int>(said_.size()));
}

}  // namespace lockstep::comm
