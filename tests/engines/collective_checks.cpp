// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/collective_checks.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/engine/plugin.h"
#include "tests/engines/serial.h"
#include "tests/rigs/engine_call.h"

namespace lockstep::test {
namespace {

using plugin::bytes_of_element;

constexpr std::size_t sizes[] = {0, 1, 2, 3, 17, 1000, 3001};

// Compares all collectives, for one kind of element.
class Checks {
 public:
  Checks(const Communicator& communicator, DType dtype)
      : communicator_(communicator), dtype_(dtype) {}

  int compared() const { return compared_; }

  void of_movements(std::size_t count) {
    broadcast(count);
    for (const bool even : {true, false}) {
      for (const bool in_place : {true, false}) all_gather(parts(count, even), in_place);
      all_to_all(count, even);
    }
  }

  void of_reductions(ReduceOp op, std::size_t count) {
    if (can(Operation::all_reduce, op)) all_reduce(op, count);
    if (can(Operation::reduce, op)) reduce(op, count);
    if (!can(Operation::reduce_scatter, op)) return;
    for (const bool even : {true, false})
      for (const bool in_place : {true, false}) reduce_scatter(op, parts(count, even), in_place);
  }

 private:
  using Counts = std::vector<std::size_t>;

  bool can(Operation operation, ReduceOp op) const {
    return communicator_.engine().supports(static_cast<std::uint8_t>(operation),
                                           static_cast<std::uint8_t>(dtype_),
                                           static_cast<std::uint8_t>(op)) != 0;
  }

  int size() const { return communicator_.size(); }
  int rank() const { return communicator_.rank(); }
  std::size_t element() const { return bytes_of_element(static_cast<std::uint8_t>(dtype_)); }

  // Returns parts of a buffer; uneven ones differ much in size, and some are empty.
  Counts parts(std::size_t count, bool even) const {
    Counts counts;
    for (int r = 0; r < size(); ++r)
      counts.push_back(even ? count : r % 3 == 1 ? 0 : count / static_cast<std::size_t>(r + 1));
    return counts;
  }

  static std::size_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  }

  std::size_t before(const Counts& counts, int rank_of_part) const {
    return std::accumulate(counts.begin(), counts.begin() + rank_of_part, std::size_t{0}) *
           element();
  }

  lockstep_buffer buffer(Bytes& data, std::size_t offset, std::size_t count) const {
    lockstep_buffer made{};
    made.data = data.data() + offset;
    made.count = count;
    made.dtype = static_cast<std::uint8_t>(dtype_);
    return made;
  }

  std::string what(std::string_view call, std::size_t count) const {
    return std::string(call) + " of " + std::to_string(count) + " elements of dtype " +
           std::to_string(static_cast<int>(dtype_)) + " on rank " + std::to_string(rank());
  }

  void compare(const std::string& call, const std::byte* found, const Bytes& expected) {
    ++compared_;
    if (are_equal(dtype_, found, expected)) return;
    std::size_t at = 0;
    while (found[at] == expected[at]) ++at;
    throw std::runtime_error(call + ": element " + std::to_string(at / element()) + " is wrong");
  }

  void done(Operation operation, const EngineCall& given, const std::string& call) {
    expect_success(run(communicator_.engine(), communicator_.handle(), operation, given, &error_),
                   call, error_);
  }

  void broadcast(std::size_t count) {
    const std::string call = what("broadcast", count);
    const int root = static_cast<int>(count) % size();
    Bytes data = elements(dtype_, count, rank());
    const lockstep_buffer all = buffer(data, 0, count);
    done(Operation::broadcast, {.output = all, .root = root}, call);
    compare(call, data.data(), elements(dtype_, count, root));
  }

  void all_gather(const Counts& counts, bool in_place) {
    const std::string call = what(in_place ? "all_gather in place" : "all_gather", total(counts));
    Bytes expected;
    for (int r = 0; r < size(); ++r) append(expected, elements(dtype_, counts[r], r));
    Bytes own = elements(dtype_, counts[rank()], rank());
    Bytes all(expected.size(), std::byte{0x5a});
    const std::size_t offset = before(counts, rank());
    if (in_place) std::copy(own.begin(), own.end(), all.data() + offset);
    const lockstep_buffer input =
        in_place ? buffer(all, offset, counts[rank()]) : buffer(own, 0, counts[rank()]);
    const lockstep_buffer output = buffer(all, 0, total(counts));
    done(Operation::all_gather, {.input = input, .output = output, .receive_counts = counts.data()},
         call);
    compare(call, all.data(), expected);
  }

  // Returns the number of elements from rank `from` to rank `to`.
  static std::size_t sent(std::size_t count, int from, int to, bool even) {
    return even ? count : count / 3 * static_cast<std::size_t>((from + 2 * to) % 4);
  }

  static int seed_of(int from, int to) { return from * 31 + to; }

  void all_to_all(std::size_t count, bool even) {
    const std::string call = what(even ? "all_to_all" : "uneven all_to_all", count);
    Counts send_counts;
    Counts receive_counts;
    Bytes input;
    Bytes expected;
    for (int peer = 0; peer < size(); ++peer) {
      send_counts.push_back(sent(count, rank(), peer, even));
      receive_counts.push_back(sent(count, peer, rank(), even));
      append(input, elements(dtype_, send_counts.back(), seed_of(rank(), peer)));
      append(expected, elements(dtype_, receive_counts.back(), seed_of(peer, rank())));
    }
    Bytes received(expected.size(), std::byte{0x5a});
    const lockstep_buffer from = buffer(input, 0, total(send_counts));
    const lockstep_buffer to = buffer(received, 0, total(receive_counts));
    done(Operation::all_to_all,
         {.input = from,
          .output = to,
          .send_counts = send_counts.data(),
          .receive_counts = receive_counts.data()},
         call);
    compare(call, received.data(), expected);
  }

  void all_reduce(ReduceOp op, std::size_t count) {
    const std::string call = what("all_reduce " + std::to_string(static_cast<int>(op)), count);
    Bytes data = elements(dtype_, count, rank());
    const lockstep_buffer all = buffer(data, 0, count);
    done(Operation::all_reduce, {.output = all, .reduce_op = static_cast<std::uint8_t>(op)}, call);
    compare(call, data.data(), combined(dtype_, op, count, size()));
  }

  void reduce(ReduceOp op, std::size_t count) {
    const std::string call = what("reduce " + std::to_string(static_cast<int>(op)), count);
    const int root = static_cast<int>(count) % size();
    Bytes data = elements(dtype_, count, rank());
    const lockstep_buffer all = buffer(data, 0, count);
    done(Operation::reduce,
         {.output = all, .reduce_op = static_cast<std::uint8_t>(op), .root = root}, call);
    if (rank() == root) compare(call, data.data(), combined(dtype_, op, count, size()));
  }

  void reduce_scatter(ReduceOp op, const Counts& counts, bool in_place) {
    const std::string call =
        what("reduce_scatter " + std::to_string(static_cast<int>(op)), total(counts));
    const std::size_t offset = before(counts, rank());
    const std::size_t bytes = counts[rank()] * element();
    Bytes input = elements(dtype_, total(counts), rank());
    Bytes apart(bytes, std::byte{0x5a});
    const lockstep_buffer all = buffer(input, 0, total(counts));
    const lockstep_buffer own =
        in_place ? buffer(input, offset, counts[rank()]) : buffer(apart, 0, counts[rank()]);
    done(Operation::reduce_scatter,
         {.input = all,
          .output = own,
          .reduce_op = static_cast<std::uint8_t>(op),
          .send_counts = counts.data()},
         call);
    const Bytes whole = combined(dtype_, op, total(counts), size());
    compare(call, static_cast<const std::byte*>(own.data),
            Bytes(whole.data() + offset, whole.data() + offset + bytes));
  }

  const Communicator& communicator_;
  DType dtype_;
  lockstep_engine_error error_{};
  int compared_ = 0;
};

}  // namespace

int check_collectives(const Communicator& communicator) {
  int compared = 0;
  for (int dtype = 0; dtype < dtype_count; ++dtype) {
    Checks checks(communicator, static_cast<DType>(dtype));
    for (const std::size_t count : sizes) {
      checks.of_movements(count);
      for (int op = 0; op < reduce_op_count; ++op)
        if (can_combine(static_cast<DType>(dtype)))
          checks.of_reductions(static_cast<ReduceOp>(op), count);
    }
    compared += checks.compared();
  }
  return compared;
}

int check_some_collectives(const Communicator& communicator) {
  Checks checks(communicator, DType::float32);
  checks.of_movements(17);
  checks.of_reductions(ReduceOp::sum, 17);
  return checks.compared();
}

}  // namespace lockstep::test
