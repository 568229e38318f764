// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/sparse_sum.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t block_bytes = std::int64_t{1} << 20;

// In the order of sending.
enum Tag : std::int64_t {
  counts,   // Rows that follow, by block.
  numbers,  // For these rows, unless they are all rows.
  values,
  mark,  // Empty: see begin().
  end,   // Empty. The mark precedes it. Received with a timeout.
};

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

void check_sent(bool ok, const ProcessGroup& group, int peer, std::string_view what) {
  if (ok) return;
  std::string text = "rank " + std::to_string(job_rank(group, peer));
  text += " sent ";
  text += what;
  throw Error(Fault::bug, text);
}

at::Tensor nothing() { return at::empty({0}, at::kByte); }

std::vector<at::Tensor> blocks_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const std::int64_t rows_of_block =
      std::max<std::int64_t>(1, block_bytes * rows / bytes_of(tensor));
  return tensor.detach().view({rows, -1}).split(rows_of_block);
}

bool is_zero(const std::byte* data, std::size_t bytes) {
  return data[0] == std::byte{0} && std::memcmp(data, data + 1, bytes - 1) == 0;
}

std::vector<std::int64_t> nonzero_rows(const at::Tensor& block) {
  const auto* row = static_cast<const std::byte*>(block.const_data_ptr());
  const std::size_t bytes = block.nbytes() / static_cast<std::size_t>(block.size(0));
  std::vector<std::int64_t> found;
  for (std::int64_t i = 0; i < block.size(0); ++i, row += bytes)
    if (!is_zero(row, bytes)) found.push_back(i);
  return found;
}

}  // namespace

template <class Act>
void SparseSum::for_each_peer(const Act& act) const {
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank()) act(peer);
}

bool SparseSum::suits(const ProcessGroup& group) {
  const std::vector<int> first = sharing_ranks(group, "sparse sum");
  for (std::size_t rank = 0; rank < first.size(); ++rank)
    if (first[rank] != static_cast<int>(rank)) return false;
  return true;
}

void SparseSum::begin() {
  for_each_peer([&](int peer) {
    // No timeout: others may send much later.
    signals_.push_back(recv_async(nothing(), group_, peer, Tag::mark,
                                  {.timeout = std::chrono::milliseconds::max()}));
  });
}

// Non-zero rows, or all rows if these are no more bytes.
SparseSum::Rows SparseSum::worth_sending(const at::Tensor& block) {
  const std::vector<std::int64_t> found = nonzero_rows(block);
  const auto count = static_cast<std::int64_t>(found.size());
  const at::Tensor which = at::empty({count}, at::kLong);
  std::ranges::copy(found, which.mutable_data_ptr<std::int64_t>());
  if (bytes_of(which) + count * bytes_of(block) / block.size(0) >= bytes_of(block))
    return {{}, block};
  return {which, block.index_select(0, which)};
}

void SparseSum::send(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  blocks_ = blocks_of(tensor);
  sent_.resize(blocks_.size());
  std::vector<std::int64_t> rows;
  for (const at::Tensor& block : blocks_) {
    own_.push_back(worth_sending(block));
    rows.push_back(own_.back().values.size(0));
  }
  const at::Tensor all_counts = at::empty({static_cast<std::int64_t>(rows.size())}, at::kLong);
  std::ranges::copy(rows, all_counts.mutable_data_ptr<std::int64_t>());
  for_each_peer([&](int peer) {
    signals_.push_back(send_async(all_counts, group_, peer, Tag::counts));
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (rows[i] == 0) continue;
      if (own_[i].numbers.defined())
        sent_[i].push_back(send_async(own_[i].numbers, group_, peer, Tag::numbers));
      sent_[i].push_back(send_async(own_[i].values, group_, peer, Tag::values));
    }
    for (const Tag tag : {Tag::mark, Tag::end})
      signals_.push_back(send_async(nothing(), group_, peer, tag));
  });
}

SparseSum::Rows SparseSum::receive(int peer, const at::Tensor& block, std::int64_t count) const {
  const std::int64_t all = block.size(0);
  check_sent(count >= 0 && count <= all, group_, peer, "more rows than a block has");
  Rows rows{{}, at::empty({count, block.size(1)}, block.options())};
  if (count < all) rows.numbers = at::empty({count}, at::kLong);
  if (count == 0) return rows;
  if (rows.numbers.defined()) {
    recv(rows.numbers, group_, peer, Tag::numbers);
    const std::span numbers(rows.numbers.const_data_ptr<std::int64_t>(),
                            static_cast<std::size_t>(count));
    check_sent(std::ranges::all_of(numbers, [&](auto row) { return row >= 0 && row < all; }),
               group_, peer, "a row that a block does not have");
  }
  recv(rows.values, group_, peer, Tag::values);
  return rows;
}

// Missing rows are zeros. Writes to the operands.
SparseSum::Rows SparseSum::added(Rows left, Rows right, std::int64_t rows) {
  if (left.numbers.defined() && right.numbers.defined())
    left = {{},
            at::zeros({rows, left.values.size(1)}, left.values.options())
                .index_copy_(0, left.numbers, left.values)};
  if (!left.numbers.defined() && !right.numbers.defined()) {
    left.values.add_(right.values);
    return left;
  }
  const bool left_is_whole = !left.numbers.defined();
  const Rows& some = left_is_whole ? right : left;
  Rows whole = left_is_whole ? left : right;
  const at::Tensor met = whole.values.index_select(0, some.numbers);
  const at::Tensor sums = left_is_whole ? met.add(some.values) : some.values.add(met);
  whole.values.add_(0);  // In the other rows, -0.0 + 0.0 is 0.0.
  whole.values.index_copy_(0, some.numbers, sums);
  return whole;
}

void SparseSum::finish() {
  const at::NoGradGuard no_grad;
  const auto blocks = static_cast<std::int64_t>(blocks_.size());
  const at::Tensor all_counts = at::empty({group_.size(), blocks}, at::kLong);
  for_each_peer([&](int peer) { recv(all_counts[peer], group_, peer, Tag::counts); });
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    for (const Work& work : sent_[i]) work.wait();  // The sum may use the memory being sent.
    std::optional<Rows> sum;
    for (int rank = 0; rank < group_.size(); ++rank) {
      Rows rows =
          rank == group_.rank()
              ? own_[i]
              : receive(rank, blocks_[i],
                        all_counts[rank][static_cast<std::int64_t>(i)].item<std::int64_t>());
      rows.values = rows.values.to(at::toOpMathType(rows.values.scalar_type()));
      sum = sum ? added(std::move(*sum), std::move(rows), blocks_[i].size(0)) : std::move(rows);
    }
    if (sum->values.data_ptr() != blocks_[i].data_ptr()) blocks_[i].copy_(sum->values);
  }
  for_each_peer([&](int peer) { recv(nothing(), group_, peer, Tag::end); });
  for (const Work& signal : std::exchange(signals_, {})) signal.wait();
  blocks_.clear();
  own_.clear();
  sent_.clear();
}

}  // namespace lockstep::parallel
