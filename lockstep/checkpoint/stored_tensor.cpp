// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/stored_tensor.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t scratch_size = 256 << 10;

// Bytes contiguous in file and data.
struct Run {
  std::uint64_t begin = 0;  // In the tensor.
  std::uint64_t end = 0;
  std::uint64_t place = 0;  // In the data.
};

class BoxRuns {
 public:
  BoxRuns(const std::vector<std::int64_t>& shape, const PlacedBox& box, std::size_t element_size)
      : element_size_(static_cast<std::int64_t>(element_size)),
        sizes_(box.box.sizes),
        data_steps_(box.strides),
        steps_(shape.size(), 1),
        place_(box.begin) {
    for (std::size_t dim = shape.size(); dim > 1; --dim)
      steps_[dim - 2] = steps_[dim - 1] * shape[dim - 1];
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      begin_ += box.box.offsets[dim] * steps_[dim];
    join_inner_dimensions();
    index_.resize(sizes_.size());
  }

  bool is_done() const { return is_done_; }

  Run run() const {
    return {.begin = bytes(begin_), .end = bytes(begin_ + length_), .place = bytes(place_)};
  }

  void next() {
    for (std::size_t dim = sizes_.size(); dim-- > 0;) {
      begin_ += steps_[dim];
      place_ += data_steps_[dim];
      if (++index_[dim] < sizes_[dim]) return;
      begin_ -= sizes_[dim] * steps_[dim];
      place_ -= sizes_[dim] * data_steps_[dim];
      index_[dim] = 0;
    }
    is_done_ = true;
  }

 private:
  // Merges inner dimensions whose runs are contiguous.
  void join_inner_dimensions() {
    while (!sizes_.empty()) {
      const std::size_t dim = sizes_.size() - 1;
      if (sizes_[dim] != 1 && (steps_[dim] != length_ || data_steps_[dim] != length_)) break;
      length_ *= sizes_[dim];
      sizes_.pop_back();
    }
  }

  std::uint64_t bytes(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements * element_size_);
  }

  std::int64_t element_size_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> data_steps_;  // In elements.
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> index_;  // In the remaining dimensions.
  std::int64_t begin_ = 0;
  std::int64_t length_ = 1;
  std::int64_t place_ = 0;
  bool is_done_ = false;
};

// The box whose run contains [begin, end), unless another run begins before that run's end.
const BoxRuns* only_holder(const std::vector<BoxRuns>& boxes, std::uint64_t begin,
                           std::uint64_t end) {
  const auto holder = std::ranges::find_if(
      boxes, [&](const BoxRuns& box) { return box.run().begin <= begin && box.run().end >= end; });
  if (holder == boxes.end()) return nullptr;
  for (const BoxRuns& other : boxes)
    if (&other != &*holder && other.run().begin < holder->run().end) return nullptr;
  return &*holder;
}

std::uint64_t first_wanted(const std::vector<BoxRuns>& boxes, std::uint64_t end) {
  for (const BoxRuns& box : boxes) end = std::min(end, box.run().begin);
  return end;
}

// `chunk` begins at `begin`.
void copy_wanted(std::span<const std::byte> chunk, std::uint64_t begin, std::vector<BoxRuns>& boxes,
                 std::span<std::byte> out) {
  const std::uint64_t end = begin + chunk.size();
  for (BoxRuns& box : boxes)
    for (; !box.is_done() && box.run().begin < end; box.next()) {
      const Run run = box.run();
      const std::uint64_t first = std::max(run.begin, begin), last = std::min(run.end, end);
      std::memcpy(out.data() + run.place + (first - run.begin), chunk.data() + (first - begin),
                  last - first);
      if (run.end > end) break;
    }
}

// With small pages, allocation costs more than the read.
void prefer_huge_pages(std::span<std::byte> bytes) {
  const std::uintptr_t page = page_size();
  const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::span<std::byte> bytes_of(at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::vector<std::int64_t> shape_of(const StoredTensor& source, const ElementRange& range) {
  const std::int64_t count = range.end - range.begin;
  if (range.boxes.empty())
    return count == source.elements() ? source.entry->shape : std::vector<std::int64_t>{count};
  return count == elements_of(range.boxes) ? local_shape(range.boxes)
                                           : std::vector<std::int64_t>{count};
}

at::Tensor place_for(const StoredTensor& source, const ElementRange& range) {
  if (range.into.defined()) return range.into;
  at::Tensor place =
      at::empty(shape_of(source, range), scalar_type_of(*source.entry, source.file->name()));
  prefer_huge_pages(bytes_of(place));
  return place;
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  return static_cast<std::int64_t>(bytes() / size_of(entry->type));
}

void StoredTensor::read(const std::vector<PlacedBox>& wanted, std::span<std::byte> out) const {
  std::vector<BoxRuns> boxes;
  for (const PlacedBox& box : wanted) boxes.emplace_back(entry->shape, box, size_of(entry->type));
  std::vector<std::byte> scratch;
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < bytes();) {
    std::erase_if(boxes, [&](BoxRuns& box) {
      if (!box.is_done() && box.run().end <= at) box.next();
      return box.is_done();
    });
    if (!crc32c) at = std::max(at, first_wanted(boxes, bytes()));
    if (at == bytes()) return;
    std::uint64_t end = std::min(at + scratch_size, bytes());
    if (const BoxRuns* holder = only_holder(boxes, at, end)) {
      const Run run = holder->run();
      end = run.end;
      crc = file->read(*entry, at, out.subspan(run.place + (at - run.begin), end - at), crc);
    } else {
      scratch.resize(std::min(scratch_size, bytes()));
      crc = file->read(*entry, at, std::span(scratch).first(end - at), crc);
      copy_wanted(std::span(scratch).first(end - at), at, boxes, out);
    }
    at = end;
  }
  if (crc == crc32c.value_or(crc)) return;
  throw Error(Fault::corrupt,
              file->name() + ": tensor " + shown(entry->name) + " is damaged: its CRC-32C differs");
}

void StoredTensor::require_fit(const ElementRange& range) const {
  const auto wrong = [this](const std::string& reason) {
    return "tensor " + shown(entry->name) + reason;
  };
  const std::string misplaced = mismatch(range.boxes, entry->shape);
  require(misplaced.empty(), [&] { return wrong(": " + misplaced); });
  const std::int64_t local = range.boxes.empty() ? elements() : elements_of(range.boxes);
  require(0 <= range.begin && range.begin <= range.end && range.end <= local,
          [&] { return wrong(" does not have the requested elements"); });
  const at::Tensor& into = range.into;
  require(!into.defined() || (into.is_cpu() && into.is_contiguous() &&
                              into.scalar_type() == scalar_type_of(*entry) &&
                              into.numel() == range.end - range.begin),
          [&] { return wrong(": `into` does not fit the requested elements"); });
}

at::Tensor StoredTensor::read(const ElementRange& range) const {
  require_fit(range);
  at::Tensor data = place_for(*this, range);
  read(place(entry->shape, range.boxes, range.begin, range.end), bytes_of(data));
  return data;
}

at::Tensor empty_of(const SafetensorsEntry& entry, at::Device device) {
  return at::empty(entry.shape, at::dtype(scalar_type_of(entry)).device(device));
}

}  // namespace lockstep::checkpoint
