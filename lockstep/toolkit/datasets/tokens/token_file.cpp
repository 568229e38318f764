// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/tokens/token_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/tokens/stored_tokens.h"

namespace lockstep {
namespace {

using datasets::StoredTokens;
using datasets::TokenType;

std::optional<TokenType> token_type_of(const std::optional<at::ScalarType>& type) {
  if (!type) return std::nullopt;
  switch (*type) {
    case at::kByte:
      return TokenType::uint8;
    case at::kShort:
      return TokenType::int16;
    case at::kUInt16:
      return TokenType::uint16;
    case at::kInt:
      return TokenType::int32;
    case at::kUInt32:
      return TokenType::uint32;
    case at::kLong:
      return TokenType::int64;
    default:
      throw Error(Fault::misuse, std::string("TokenFileOptions::raw: tokens cannot be of type ") +
                                     at::toString(*type));
  }
}

std::uint64_t positive(std::int64_t value, const char* name) {
  require(value > 0 && value < std::numeric_limits<std::int64_t>::max(), [&] {
    return std::string("TokenFileOptions::") + name + " is " + std::to_string(value) +
           ", it must be positive";
  });
  return static_cast<std::uint64_t>(value);
}

struct Window {
  std::size_t file;
  std::uint64_t begin;
};

}  // namespace

struct TokenFile::State {
  State(const std::vector<std::filesystem::path>& paths, const TokenFileOptions& chosen);

  Window place(std::size_t index) const;
  Window window(std::size_t index, std::uint64_t seed, std::int64_t epoch) const;
  std::vector<std::int64_t> begins_of(const Window& window,
                                      std::span<const std::int64_t> tokens) const;
  void read(const Window& window, std::int64_t* data, std::int64_t* target) const;

  const TokenFileOptions options;
  const std::uint64_t length;
  const std::uint64_t stride;
  std::vector<StoredTokens> files;
  // Each file's first window, then the number of all.
  std::vector<std::uint64_t> first = {0};
};

TokenFile::State::State(const std::vector<std::filesystem::path>& paths,
                        const TokenFileOptions& chosen)
    : options(chosen),
      length(positive(chosen.length, "length")),
      stride(positive(chosen.stride.value_or(chosen.length), "stride")) {
  require(!paths.empty(), "TokenFile: at least one file is needed");
  require(!options.vocabulary || *options.vocabulary > 0,
          "TokenFileOptions::vocabulary must be positive");
  const auto raw = token_type_of(options.raw);
  for (const auto& path : paths) {
    const StoredTokens& file = files.emplace_back(path, raw);
    require(file.count() > length, [&] {
      return file.name() + ": it has " + std::to_string(file.count()) +
             " tokens, but a window of " + std::to_string(length) +
             " and its last target take one more than that";
    });
    require(!options.mask_document_ends || options.end_of_document || file.has_documents(), [&] {
      return file.name() +
             ": the file does not mark the ends of documents: mask_document_ends needs "
             "TokenFileOptions::end_of_document";
    });
    first.push_back(first.back() + (file.count() - 1 - length) / stride + 1);
  }
}

Window TokenFile::State::place(std::size_t index) const {
  require(index < first.back(), [&] {
    return "TokenFile: sample " + std::to_string(index) + " of " + std::to_string(first.back());
  });
  const auto next = std::ranges::upper_bound(first, index);
  const auto file = static_cast<std::size_t>(next - first.begin()) - 1;
  return {file, (index - first[file]) * stride};
}

Window TokenFile::State::window(std::size_t index, std::uint64_t seed, std::int64_t epoch) const {
  Window window = place(index);
  if (!options.random_begin) return window;
  const auto shift = SampleRandom(seed, epoch, index).below(static_cast<std::int64_t>(stride));
  const std::uint64_t last = files[window.file].count() - 1 - length;
  window.begin = std::min(window.begin + static_cast<std::uint64_t>(shift), last);
  return window;
}

// Documents that begin among the length + 1 `tokens`, from the window's begin.
std::vector<std::int64_t> TokenFile::State::begins_of(const Window& window,
                                                      std::span<const std::int64_t> tokens) const {
  std::vector<std::int64_t> begins;
  if (!options.end_of_document) {
    for (const std::uint64_t begin :
         files[window.file].document_begins(window.begin, window.begin + length + 1))
      begins.push_back(static_cast<std::int64_t>(begin - window.begin));
    return begins;
  }
  std::int64_t before = *options.end_of_document;
  if (window.begin > 0) files[window.file].read(window.begin - 1, {&before, 1}, std::nullopt);
  for (std::size_t i = 0; i < tokens.size(); before = tokens[i++])
    if (before == *options.end_of_document) begins.push_back(static_cast<std::int64_t>(i));
  return begins;
}

// Converts once each token that is data and, one position earlier, a target.
void TokenFile::State::read(const Window& window, std::int64_t* data, std::int64_t* target) const {
  const StoredTokens& file = files[window.file];
  file.read(window.begin, {data, 1}, options.vocabulary);
  file.read(window.begin + 1, {target, length}, options.vocabulary);
  std::memcpy(data + 1, target, (length - 1) * sizeof(std::int64_t));
  if (!options.mask_document_ends) return;
  std::vector<std::int64_t> tokens(length + 1);
  tokens[0] = data[0];
  std::copy_n(target, length, tokens.begin() + 1);
  for (const std::int64_t begin : begins_of(window, tokens))
    if (begin > 0) target[begin - 1] = ignored_target;
}

TokenFile::TokenFile(const std::filesystem::path& file, const TokenFileOptions& options)
    : TokenFile(std::vector{file}, options) {}

TokenFile::TokenFile(const std::vector<std::filesystem::path>& files,
                     const TokenFileOptions& options)
    : state_(std::make_unique<const State>(files, options)) {}

TokenFile::~TokenFile() = default;

std::int64_t TokenFile::tokens() const {
  std::int64_t sum = 0;
  for (const StoredTokens& file : state_->files) sum += static_cast<std::int64_t>(file.count());
  return sum;
}

std::vector<std::int64_t> TokenFile::document_begins(std::size_t index, std::uint64_t seed,
                                                     std::int64_t epoch) const {
  const Window window = state_->window(index, seed, epoch);
  state_->files[window.file].require_unchanged();
  std::vector<std::int64_t> tokens(state_->length);
  state_->files[window.file].read(window.begin, tokens, std::nullopt);
  auto begins = state_->begins_of(window, tokens);
  if (!begins.empty() && begins.back() == state_->options.length) begins.pop_back();
  return begins;
}

std::size_t TokenFile::size() const { return state_->first.back(); }

SampleSpec TokenFile::data_spec() const { return {{state_->options.length}, at::kLong}; }

SampleSpec TokenFile::target_spec() const { return data_spec(); }

void TokenFile::fill(const BatchRows& rows) const {
  check(rows.data.stride(-1) == 1 && rows.target.stride(-1) == 1,
        "rows of tokens must be contiguous");
  std::vector<bool> is_checked(state_->files.size());
  auto* const data = rows.data.mutable_data_ptr<std::int64_t>();
  auto* const target = rows.target.mutable_data_ptr<std::int64_t>();
  for (std::size_t row = 0; row < rows.indices.size(); ++row) {
    const Window window = state_->window(rows.indices[row], rows.seed, rows.epoch);
    if (!is_checked[window.file]) state_->files[window.file].require_unchanged();
    is_checked[window.file] = true;
    const auto place = static_cast<std::int64_t>(row);
    state_->read(window, data + place * rows.data.stride(0),
                 target + place * rows.target.stride(0));
  }
}

std::string TokenFile::sample_name(std::size_t index) const {
  const Window window = state_->place(index);
  return state_->files[window.file].name() + ": tokens " + std::to_string(window.begin) + " to " +
         std::to_string(window.begin + state_->length);
}

}  // namespace lockstep
