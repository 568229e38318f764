// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/compressed_shards.h"

#include <string>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"
#include "lockstep/toolkit/datasets/mapped_file.h"

namespace lockstep::datasets {
namespace {

// A zstd stream may need 8 MiB, an xz stream 64 MiB.
constexpr std::size_t most_idle = 8;

// By threads that read in order.
constexpr std::size_t most_restarts = 2 * most_idle;

std::unique_ptr<ArchiveInput> input_of(const OpenShard& open) {
  return std::make_unique<PlainInput>(stamp_of(open.fd, open.name).size,
                                      [&open](std::uint64_t offset, std::span<std::byte> out) {
                                        read_exactly_at(open.fd, open.name, offset, out);
                                      });
}

}  // namespace

CompressedShards::Stream::Stream(std::size_t number, std::shared_ptr<const OpenShard> opened)
    : shard(number), open(std::move(opened)), input(open->name, input_of(*open)) {}

void CompressedShards::read(std::size_t shard, const std::shared_ptr<const OpenShard>& open,
                            std::uint64_t offset, std::span<std::byte> out) {
  StreamPtr stream = take(shard, offset);
  if (!stream) {
    stream = std::make_unique<Stream>(shard, open);
    count_start(*stream);
  }
  stream->input.skip(offset - stream->input.position());
  if (stream->input.read(out) != out.size())
    throw_corrupt(open->name, stream->input.position(), "more decompressed bytes", "the end");
  keep(std::move(stream));
}

// The closest before `offset`, or nullptr.
CompressedShards::StreamPtr CompressedShards::take(std::size_t shard, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  auto best = idle_.end();
  for (auto each = idle_.begin(); each != idle_.end(); ++each) {
    const std::uint64_t place = (*each)->input.position();
    if ((*each)->shard != shard || place > offset) continue;
    if (best == idle_.end() || place > (*best)->input.position()) best = each;
  }
  if (best == idle_.end()) return nullptr;
  StreamPtr stream = std::move(*best);
  idle_.erase(best);
  return stream;
}

void CompressedShards::keep(StreamPtr stream) {
  StreamPtr dropped;  // Destroyed without the lock.
  const std::lock_guard lock(mutex_);
  idle_.push_front(std::move(stream));
  if (idle_.size() <= most_idle) return;
  dropped = std::move(idle_.back());
  idle_.pop_back();
}

void CompressedShards::count_start(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (started_.insert(stream.shard).second || ++restarts_ != most_restarts) return;
  log(LogLevel::warning,
      "TarShards: " + clean_text(stream.open->name) +
          " is compressed, and is decompressed from its beginning for each sample before the last "
          "one. Read the samples in order, or decompress the shard for a shuffle");
}

}  // namespace lockstep::datasets
