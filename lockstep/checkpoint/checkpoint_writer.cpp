// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpoint_writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory.h"
#include "lockstep/checkpoint/crc32c.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/comm/shm/ownership.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/placed_box.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::checkpoint {
namespace {

using Share = PlannedTensor::Share;

// Bytes that stay in the cache between checksum and write.
constexpr std::size_t chunk_size = 256 << 10;

constexpr std::size_t alignment = 64;

std::size_t aligned(std::size_t size) { return (size + alignment - 1) / alignment * alignment; }

std::uint32_t write_summed(OutputFile& file, std::span<const std::byte> bytes) {
  std::uint32_t crc = 0;
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), chunk_size));
    crc = crc32c(chunk, crc);
    file.write(chunk);
    bytes = bytes.subspan(chunk.size());
  }
  return crc;
}

bool has_share(const PlannedTensor& tensor, int rank) {
  return std::ranges::find(tensor.shares, rank, &Share::rank) != tensor.shares.end();
}

void put(const at::Tensor& data, const Share& share, const at::Tensor& whole) {
  for (const PlacedBox& box : share.boxes)
    view_in_whole(whole, box.box).copy_(view_in_data(data, box));
}

}  // namespace

SnapshotMemory::~SnapshotMemory() {
  stop_preparing();
  if (data_ != nullptr) ::munmap(data_, size_);
}

void SnapshotMemory::prepare(std::size_t size) {
  stop_preparing();
  grow(size);
  try {
    preparing_ = Thread([this] { touch_pages(); });
  } catch (const Error& error) {
    log(LogLevel::warning,
        std::string("memory for a checkpoint is not allocated in the background: ") + error.what());
  }
}

std::byte* SnapshotMemory::reserve(std::size_t size) {
  stop_preparing();
  grow(size);
  touched_ = std::max(touched_, size / page_size() * page_size());
  return data_;
}

// Keeps pages; the address may change.
void SnapshotMemory::grow(std::size_t size) {
  if (size <= size_) return;
  void* const data = data_ == nullptr ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                      : ::mremap(data_, size_, size, MREMAP_MAYMOVE);
  if (data == MAP_FAILED)
    throw_errno("memory for a copy of the state, " + std::to_string(size) + " bytes");
  ::madvise(data, size, MADV_HUGEPAGE);  // Optional: small pages work too.
  data_ = static_cast<std::byte*>(data);
  size_ = size;
}

// MADV_POPULATE_WRITE would block mmap() of other threads.
void SnapshotMemory::touch_pages() {
  for (; touched_ < size_ && !must_stop_; touched_ += page_size())
    static_cast<volatile std::byte*>(data_)[touched_] = std::byte{};
}

void SnapshotMemory::stop_preparing() {
  must_stop_ = true;
  if (preparing_.joinable()) preparing_.join();
  must_stop_ = false;
}

CheckpointWriter::CheckpointWriter(SavePlan plan, const NamedStateDicts& states,
                                   const CheckpointRanks& ranks)
    : plan_(std::move(plan)), ranks_(ranks), sources_(plan_.tensors.size()) {
  std::map<std::string, const StateDict*> parts;
  for (const auto& [name, state] : states) parts.emplace(name, &state);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const PlannedTensor& tensor = plan_.tensors[i];
    if (tensor.shares.empty() ? is_written_here(tensor) : has_share(tensor, ranks_.rank()))
      sources_[i] = parts.at(tensor.part)->tensors.at(tensor.entry.name).data.detach();
  }
}

std::size_t CheckpointWriter::copy_size() const {
  std::size_t size = 0;
  for (const at::Tensor& source : sources_)
    if (source.defined()) size += aligned(source.nbytes());
  return size;
}

void CheckpointWriter::copy_into(SnapshotMemory& memory) {
  const at::NoGradGuard no_grad;
  const std::size_t size = copy_size();
  std::byte* place = size == 0 ? nullptr : memory.reserve(size);
  for (at::Tensor& source : sources_) {
    if (!source.defined()) continue;
    const std::size_t bytes = source.nbytes();
    const at::Tensor copy = at::from_blob(place, source.sizes(), source.scalar_type());
    if (has_plain_values(source))
      copy_pages_past_caches(place, static_cast<const std::byte*>(source.const_data_ptr()), bytes);
    else
      copy.copy_(source);
    source = copy;
    place += aligned(bytes);
  }
}

std::vector<ManifestFile> CheckpointWriter::write(const std::filesystem::path& directory) {
  const at::NoGradGuard no_grad;
  std::vector<Work> sends;
  std::vector<ManifestFile> files;
  std::exception_ptr error;
  try {
    sends = send_shares();
    files = write_files(directory);
  } catch (...) {
    error = std::current_exception();
    take_remaining_shares();
  }
  for (const Work& send : sends) send.wait();
  if (error) std::rethrow_exception(error);
  return files;
}

bool CheckpointWriter::is_written_here(const PlannedTensor& tensor) const {
  return tensor.writer == ranks_.rank();
}

at::Tensor CheckpointWriter::assemble(std::size_t index) {
  const PlannedTensor& tensor = plan_.tensors[index];
  next_ = index + 1;
  if (tensor.shares.empty()) return plain_values(sources_[index]);
  const at::Tensor whole = at::empty(tensor.grid, scalar_type_of(tensor.entry));
  for (const Share& share : tensor.shares) {
    if (share.rank == ranks_.rank()) {
      put(plain_values(sources_[index]).flatten(), share, whole);
      continue;
    }
    const at::Tensor run = run_in_whole(whole, share.boxes, share.elements);
    const at::Tensor data = run.defined() ? run : at::empty({share.elements}, whole.options());
    recv(data, ranks_.group(), share.rank, static_cast<std::int64_t>(index),
         {.timeout = ranks_.timeout()});
    if (!run.defined()) put(data, share, whole);
  }
  if (tensor.strides.empty()) return whole;
  return whole.as_strided(tensor.entry.shape, tensor.strides).contiguous();
}

// In the order in which writers receive.
std::vector<Work> CheckpointWriter::send_shares() const {
  std::vector<Work> sends;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const PlannedTensor& tensor = plan_.tensors[i];
    if (sources_[i].defined() && !is_written_here(tensor))
      sends.push_back(send_async(plain_values(sources_[i]).flatten(), ranks_.group(), tensor.writer,
                                 static_cast<std::int64_t>(i), {.timeout = ranks_.timeout()}));
  }
  return sends;
}

std::vector<ManifestFile> CheckpointWriter::write_files(const std::filesystem::path& directory) {
  std::map<std::string, std::set<int>> writers;  // By part.
  std::map<std::string, std::vector<std::size_t>> written;
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan_.tensors[i];
    writers[tensor.part].insert(tensor.writer);
    if (is_written_here(tensor)) written[tensor.part].push_back(i);
  }
  std::vector<ManifestFile> files;
  for (const auto& [part, tensors] : written) {
    const std::set<int>& all = writers.at(part);
    const auto place = std::distance(all.begin(), all.find(ranks_.rank()));
    const std::string name = file_name(part, static_cast<std::size_t>(place) + 1, all.size());
    files.push_back(write_file(tensors, directory / name));
  }
  return files;
}

ManifestFile CheckpointWriter::write_file(std::span<const std::size_t> tensors,
                                          const std::filesystem::path& path) {
  SafetensorsHeader header{.entries = {}, .metadata = {{"format", "pt"}}};
  for (const std::size_t index : tensors) header.entries.push_back(plan_.tensors[index].entry);
  lay_out(header);
  const std::string head = format_safetensors_header(header);

  ManifestFile entry{.name = path.filename().string(),
                     .part = plan_.tensors[tensors.front()].part,
                     .bytes = head.size() + header.entries.back().end,
                     .header_crc32c = 0,
                     .tensors = {}};
  OutputFile file(path);
  file.reserve(entry.bytes);
  entry.header_crc32c = write_summed(file, std::as_bytes(std::span(head)));
  for (const std::size_t index : tensors) {  // In header order.
    const at::Tensor values = assemble(index);
    entry.tensors[plan_.tensors[index].entry.name] = write_summed(
        file, {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  file.sync();
  return entry;
}

// Otherwise the senders would wait.
void CheckpointWriter::take_remaining_shares() {
  for (; next_ < sources_.size(); ++next_)
    if (is_written_here(plan_.tensors[next_]) && !plan_.tensors[next_].shares.empty())
      assemble(next_);
}

}  // namespace lockstep::checkpoint
