// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/nccl/communicator.h"

#include <algorithm>
#include <string>
#include <thread>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/nccl/devices.h"

namespace lockstep::comm::engines {
namespace {

std::optional<ncclDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::float16:
      return ncclFloat16;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::int8:
      return ncclInt8;
    case DType::int32:
      return ncclInt32;
    case DType::int64:
      return ncclInt64;
    case DType::uint8:
    case DType::boolean:
      return ncclUint8;
    case DType::uint32:
      return ncclUint32;
    case DType::uint64:
      return ncclUint64;
    case DType::int16:
    case DType::uint16:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<ncclRedOp_t> op_of(DType dtype, ReduceOp op) {
  const bool boolean = dtype == DType::boolean;
  switch (op) {
    case ReduceOp::sum:
      return boolean ? ncclMax : ncclSum;
    case ReduceOp::product:
      return boolean ? ncclMin : ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::average:
      if (boolean) return std::nullopt;
      return ncclAvg;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return std::nullopt;
  }
  return std::nullopt;
}

constexpr std::chrono::hours longest_wait{24 * 365};  // Stands for "no timeout".
constexpr std::chrono::seconds longest_farewell{10};
constexpr std::chrono::microseconds poll_interval{50};

cudaStream_t stream_of(const lockstep_buffer& buffer) {
  return static_cast<cudaStream_t>(buffer.stream);
}

bool is_good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

Reduction known_reduction(const lockstep_buffer& buffer, std::uint8_t reduce_op) {
  if (const auto reduction = reduction_of(buffer.dtype, reduce_op)) return *reduction;
  throw plugin::Failed{Fault::unsupported, "NCCL has no such reduction of elements of this type"};
}

// NCCL reads it once, before its first communicator.
void choose_interface(const char* name) {
  if (name != nullptr && *name != '\0')
    plugin::set_by_default("NCCL_SOCKET_IFNAME", '=' + std::string(name));
}

}  // namespace

std::optional<Reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op) {
  const auto type = type_of(static_cast<DType>(dtype));
  const auto op = op_of(static_cast<DType>(dtype), static_cast<ReduceOp>(reduce_op));
  if (!type || !op) return std::nullopt;
  return Reduction{*type, *op};
}

Communicator::Communicator(const lockstep_engine_config& config)
    : rank_(config.rank),
      size_(config.size),
      device_(config.device_index),
      timeout_(std::min<std::chrono::milliseconds>(std::chrono::milliseconds(config.timeout_ms),
                                                   longest_wait)) {
  choose_interface(config.interface_name);
  require_device();
  if (device_ < 0) throw plugin::Failed{Fault::misuse, "NCCL works on CUDA devices only"};
  const DeviceGuard guard(device_);
  ncclUniqueId id = meet(config);
  ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
  settings.blocking = 0;
  const auto deadline = Clock::now() + timeout_;
  std::unique_lock lock(mutex_);
  const ncclResult_t begun = ncclCommInitRankConfig(&handle_, size_, id, rank_, &settings);
  settle("ncclCommInitRankConfig", begun, deadline, lock);
}

Communicator::~Communicator() {
  try {
    const DeviceGuard guard(device_);
    std::unique_lock lock(mutex_);
    if (handle_ == nullptr) return;
    const auto patience = std::min<std::chrono::milliseconds>(timeout_, longest_farewell);
    settle("ncclCommFinalize", ncclCommFinalize(handle_), Clock::now() + patience, lock);
    if (handle_ != nullptr) ncclCommDestroy(handle_);
  } catch (...) {
    // settle() has aborted it. At process exit, device and communicator may be gone.
  }
}

void Communicator::cancel() {
  const std::lock_guard lock(mutex_);
  abort_locked();
}

void Communicator::abort_locked() {
  if (handle_ != nullptr) ncclCommAbort(handle_);
  handle_ = nullptr;
}

// Waits, without the lock, until `result` is no longer "in progress".
void Communicator::settle(const char* what, ncclResult_t result, Clock::time_point deadline,
                          std::unique_lock<std::mutex>& lock) {
  while (result == ncclInProgress) {
    if (handle_ == nullptr)
      throw plugin::Failed{Fault::aborted, std::string(what) + ": it was cancelled"};
    if (const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result); asked != ncclSuccess)
      result = asked;
    if (result != ncclInProgress) break;
    if (Clock::now() > deadline) {
      abort_locked();
      throw plugin::Failed{Fault::timeout, std::string(what) + " of NCCL did not end in time"};
    }
    lock.unlock();
    std::this_thread::sleep_for(poll_interval);
    lock.lock();
  }
  if (result == ncclSuccess) return;
  const std::string text =
      std::string(what) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(handle_);
  abort_locked();
  throw plugin::Failed{Fault::system, text};
}

// `act` makes related NCCL calls, and stops at the first failure.
template <class Act>
void Communicator::enqueue(const char* what, Act act) {
  const DeviceGuard guard(device_);
  std::unique_lock lock(mutex_);
  if (handle_ == nullptr)
    throw plugin::Failed{Fault::aborted, std::string(what) + ": the communicator was cancelled"};
  ncclResult_t result = ncclGroupStart();
  if (result == ncclSuccess) {
    result = act();
    const ncclResult_t ended = ncclGroupEnd();
    if (is_good(result)) result = ended;
  }
  settle(what, result, Clock::now() + timeout_, lock);
}

// Both have a part for each rank; an empty one is not transferred.
void Communicator::exchange(const char* what, cudaStream_t stream, const plugin::Parts& sent,
                            const plugin::Parts& received) {
  const auto [to, bytes] = received[rank_];
  const std::byte* const from = sent[rank_].data;
  if (bytes > 0 && to != from) {
    const DeviceGuard guard(device_);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), what);
  }
  enqueue(what, [&] {
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < size_ && is_good(result); ++peer) {
      if (peer == rank_) continue;
      const plugin::Part out = sent[peer];
      const plugin::Part in = received[peer];
      if (out.bytes > 0) result = ncclSend(out.data, out.bytes, ncclInt8, peer, handle_, stream);
      if (in.bytes > 0 && is_good(result))
        result = ncclRecv(in.data, in.bytes, ncclInt8, peer, handle_, stream);
    }
    return result;
  });
}

void Communicator::all_reduce(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  const auto [type, op] = known_reduction(data, call.reduce_op);
  enqueue("ncclAllReduce", [&] {
    return ncclAllReduce(data.data, data.data, data.count, type, op, handle_, stream_of(data));
  });
}

void Communicator::broadcast(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  enqueue("ncclBroadcast", [&] {
    return ncclBroadcast(data.data, data.data, plugin::bytes_of(data), ncclInt8, call.root, handle_,
                         stream_of(data));
  });
}

void Communicator::reduce(const lockstep_collective& call) {
  const lockstep_buffer& data = call.output;
  const auto [type, op] = known_reduction(data, call.reduce_op);
  enqueue("ncclReduce", [&] {
    return ncclReduce(data.data, data.data, data.count, type, op, call.root, handle_,
                      stream_of(data));
  });
}

void Communicator::all_gather(const lockstep_collective& call) {
  if (plugin::are_equal(call.receive_counts, size_))
    return enqueue("ncclAllGather", [&] {
      return ncclAllGather(call.input.data, call.output.data, plugin::bytes_of(call.input),
                           ncclInt8, handle_, stream_of(call.output));
    });
  exchange("an all_gather of uneven parts", stream_of(call.output),
           {plugin::whole(call.input), size_}, {call.output, call.receive_counts, size_});
}

void Communicator::reduce_scatter(const lockstep_collective& call) {
  const lockstep_buffer& output = call.output;
  const std::size_t* const counts = call.send_counts;
  const auto [type, op] = known_reduction(call.input, call.reduce_op);
  if (plugin::are_equal(counts, size_))
    return enqueue("ncclReduceScatter", [&] {
      return ncclReduceScatter(call.input.data, output.data, output.count, type, op, handle_,
                               stream_of(output));
    });
  const plugin::Parts parts(call.input, counts, size_);
  enqueue("a reduce_scatter of uneven parts", [&] {
    ncclResult_t result = ncclSuccess;
    for (int root = 0; root < size_ && is_good(result); ++root)
      if (counts[root] > 0)
        result = ncclReduce(parts[root].data, output.data, counts[root], type, op, root, handle_,
                            stream_of(output));
    return result;
  });
}

void Communicator::all_to_all(const lockstep_collective& call) {
  exchange("an all_to_all", stream_of(call.output), {call.input, call.send_counts, size_},
           {call.output, call.receive_counts, size_});
}

}  // namespace lockstep::comm::engines
