// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/decoded_images.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/images/image_edit.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "lockstep/toolkit/datasets/images/image_step.h"
#include "lockstep/toolkit/datasets/images/pixel_cache.h"
#include "lockstep/toolkit/datasets/images/pixel_operations.h"

namespace lockstep {

using datasets::BadImage;
using datasets::ImageEdit;
using datasets::ImageReader;
using datasets::PixelReader;

namespace {

struct Workspace {
  EncodedBuffer encoded;
  datasets::PixelMemory edited;
  datasets::Pixels whole;
  datasets::Pixels kept;
};

// A pool: each working thread takes one.
class Workspaces {
 public:
  template <class Work>
  void with_one(Work work) {
    std::unique_ptr<Workspace> mine = take();
    work(*mine);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(mine));
  }

 private:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> last = std::move(free_.back());
    free_.pop_back();
    return last;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

ImageSize size_of_output(const ImageTransform& transform) {
  const auto size = transform.output_size();
  require(size.has_value(),
          "the transform leaves images of different sizes, which do not fit into one batch: add "
          "CenterCrop, RandomResizedCrop, or Resize with height and width");
  return *size;
}

std::optional<datasets::PixelCache> cache_of(const EncodedImages& images,
                                             const std::optional<HostCache>& options) {
  if (!options) return std::nullopt;
  return std::optional<datasets::PixelCache>(std::in_place, images.size(), images.fingerprint(),
                                             *options);
}

}  // namespace

constexpr BadFiles BadFiles::error{std::nullopt};

class DecodedImages::State {
 public:
  State(std::shared_ptr<const EncodedImages> from, ImageOptions options)
      : source(std::move(from)),
        cache(cache_of(*source, options.cache)),
        transform(std::move(options.transform)),
        size(size_of_output(transform)),
        bad_files(options.bad_files),
        shorter_side_(options.cache ? options.cache->shorter_side : 0) {}

  // Writes image `index`, or the next decodable one; returns its index.
  std::size_t write_or_skip(std::size_t index, const SampleRandom& random, const at::Tensor& row,
                            Workspace& memory) {
    for (std::size_t skipped = 0; skipped < source->size(); ++skipped) {
      const std::size_t next = (index + skipped) % source->size();
      try {
        write(next, random, row, memory);
        return next;
      } catch (const BadImage& bad) {
        note_bad(next, bad.what());
      }
    }
    throw Error(Fault::corrupt, "none of the images can be decoded");
  }

  std::vector<BadFile> found() const {
    const std::lock_guard lock(mutex_);
    std::vector<BadFile> all;
    for (const auto& [index, reason] : found_) all.push_back({index, source->name(index), reason});
    return all;
  }

  std::size_t flawed() const {
    const std::lock_guard lock(mutex_);
    return flawed_.size();
  }

  const std::shared_ptr<const EncodedImages> source;
  std::optional<datasets::PixelCache>
      cache;  // Before the transform, which only this rank may reject.
  const ImageTransform transform;
  const ImageSize size;
  const BadFiles bad_files;
  Workspaces workspaces;

 private:
  void write(std::size_t index, SampleRandom random, const at::Tensor& row, Workspace& memory) {
    if (!cache) {
      const auto reader = datasets::read_image(source->read(index, memory.encoded));
      write(*reader, random, row, memory);
      return note_flaw(index, reader->flaw());
    }
    PixelReader reader(cached(index, memory));
    write(reader, random, row, memory);
  }

  // Throws unless bad files are skipped, up to the limit.
  void note_bad(std::size_t index, const std::string& reason) {
    const std::string text = clean_text(source->name(index)) + ": " + reason;
    const std::optional<std::size_t> at_most = bad_files.at_most();
    if (!at_most) throw Error(Fault::corrupt, text);
    const std::lock_guard lock(mutex_);
    const bool is_new = found_.try_emplace(index, reason).second;
    if (found_.size() > *at_most)
      throw Error(Fault::corrupt, text + " (bad file number " + std::to_string(found_.size()) +
                                      "; BadFiles::skip allows " + std::to_string(*at_most) + ")");
    if (is_new) log(LogLevel::warning, "skipping a bad file: " + text);
  }

  // Logs only the first: some datasets have thousands.
  void note_flaw(std::size_t index, const std::string& flaw) {
    if (flaw.empty()) return;
    const std::lock_guard lock(mutex_);
    if (!flawed_.insert(index).second || flawed_.size() > 1) return;
    log(LogLevel::warning, clean_text(source->name(index)) + ": " + flaw +
                               "; all pixels were decoded, but damaged image data can cause the "
                               "same warning. Further such images are only counted: "
                               "flawed_images()");
  }

  void write(ImageReader& reader, SampleRandom& random, const at::Tensor& row,
             Workspace& memory) const {
    ImageEdit image(reader, memory.edited);
    datasets::TransformParts::apply(transform, image, random);
    image.write(values_, row);
  }

  // The pixels in the cache, or those it would have with more space.
  datasets::PixelView cached(std::size_t index, Workspace& memory) {
    if (const auto found = cache->find(index)) return *found;
    const auto reader = datasets::read_image(source->read(index, memory.encoded));
    reader->read({.size = reader->size()}, memory.whole);
    note_flaw(index, reader->flaw());
    datasets::PixelView pixels = memory.whole.view();
    if (shorter_side_ > 0 && std::min(pixels.size.height, pixels.size.width) > shorter_side_) {
      const ImageSize smaller = datasets::size_with_shorter_side(pixels.size, shorter_side_);
      datasets::resize_pixels(pixels, smaller, memory.kept);
      pixels = memory.kept.view();
    }
    cache->keep(index, pixels);
    return pixels;
  }

  const std::int64_t shorter_side_;
  const datasets::ValueTable values_ = datasets::TransformParts::values(transform);
  mutable std::mutex mutex_;
  std::map<std::size_t, std::string> found_;  // With reasons.
  std::set<std::size_t> flawed_;
};

DecodedImages::DecodedImages(std::shared_ptr<const EncodedImages> source, ImageOptions options)
    : state_(std::make_unique<State>(std::move(source), std::move(options))) {}

DecodedImages::~DecodedImages() = default;

std::size_t DecodedImages::size() const { return state_->source->size(); }

SampleSpec DecodedImages::data_spec() const {
  return {.sizes = {datasets::channels, state_->size.height, state_->size.width},
          .type = at::kFloat};
}

SampleSpec DecodedImages::target_spec() const { return {.sizes = {}, .type = at::kLong}; }

void DecodedImages::fill(const BatchRows& rows) const {
  check(rows.data.scalar_type() == at::kFloat && rows.data.is_cpu(),
        "images are written as floats, on the CPU");
  state_->workspaces.with_one([&](Workspace& memory) {
    for (std::size_t row = 0; row < rows.indices.size(); ++row) {
      const at::Tensor to = rows.data.select(0, static_cast<std::int64_t>(row));
      const std::size_t wanted = rows.indices[row];
      const std::size_t written = state_->write_or_skip(wanted, rows.random(row), to, memory);
      rows.target.mutable_data_ptr<std::int64_t>()[row] = state_->source->label(written);
    }
  });
}

void DecodedImages::will_read(std::span<const std::size_t> indices) const {
  state_->source->will_read(indices);
}

std::string DecodedImages::sample_name(std::size_t index) const {
  return clean_text(state_->source->name(index));
}

std::vector<BadFile> DecodedImages::bad_files() const { return state_->found(); }

std::size_t DecodedImages::flawed_images() const { return state_->flawed(); }

RegisteredMemory DecodedImages::cache_memory() const {
  return state_->cache ? state_->cache->memory() : RegisteredMemory();
}

std::size_t DecodedImages::cached_images() const {
  return state_->cache ? state_->cache->images() : 0;
}

}  // namespace lockstep
