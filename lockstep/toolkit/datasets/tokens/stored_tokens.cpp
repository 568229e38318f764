// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/tokens/stored_tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_format.h"
#include "lockstep/toolkit/datasets/arrays/npy_header.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {
namespace {

namespace fs = std::filesystem;

struct MegatronFiles {
  fs::path index;
  fs::path tokens;
};

std::optional<MegatronFiles> megatron_files(const fs::path& path) {
  const fs::path extension = path.extension();
  const bool is_prefix = extension != ".idx" && extension != ".bin";
  std::error_code absent;  // Opening the file reports other reasons.
  if (is_prefix && fs::exists(path, absent)) return std::nullopt;
  const auto with = [&](const char* end) {
    fs::path other = path;
    return is_prefix ? other += end : other.replace_extension(end);
  };
  MegatronFiles files{with(".idx"), with(".bin")};
  if (extension != ".idx" && !fs::exists(files.index, absent)) return std::nullopt;
  return files;
}

// Returns the largest token, beyond any vocabulary if one is negative.
template <class Token>
std::uint64_t widen(const std::byte* from, std::span<std::int64_t> out) {
  Token least = 0;
  Token largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token{};  // Tokens may be unaligned.
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    out[i] = static_cast<std::int64_t>(token);
    least = std::min(least, token);
    largest = std::max(largest, token);
  }
  constexpr auto beyond = std::numeric_limits<std::uint64_t>::max();
  return least < 0 ? beyond : static_cast<std::uint64_t>(largest);
}

using Widen = std::uint64_t (*)(const std::byte*, std::span<std::int64_t>);

Widen widen_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return widen<std::uint8_t>;
    case TokenType::int8:
      return widen<std::int8_t>;
    case TokenType::int16:
      return widen<std::int16_t>;
    case TokenType::uint16:
      return widen<std::uint16_t>;
    case TokenType::int32:
      return widen<std::int32_t>;
    case TokenType::uint32:
      return widen<std::uint32_t>;
    case TokenType::int64:
      return widen<std::int64_t>;
    case TokenType::uint64:
      return widen<std::uint64_t>;
  }
  throw Error(Fault::bug, "a type of tokens that cannot be read");
}

TokenType type_of_array(const std::string& file, const NpyHeader& header) {
  for (const TokenType type :
       {TokenType::uint8, TokenType::int8, TokenType::int16, TokenType::uint16, TokenType::int32,
        TokenType::uint32, TokenType::int64, TokenType::uint64})
    if (bytes_of(type) == header.width && name_of(type)[0] == header.kind) return type;
  throw Error(Fault::unsupported, file + ": the array has values of type '" +
                                      std::string(1, header.kind) + std::to_string(header.width) +
                                      "', and tokens are integers");
}

TokenRange tokens_of_array(const MappedFile& file) {
  const NpyHeader header = parse_npy_header(file.name(), file.bytes());
  const TokenType type = type_of_array(file.name(), header);
  if (header.shape.size() != 1)
    throw Error(Fault::unsupported,
                file.name() + ": the array has " + std::to_string(header.shape.size()) +
                    " dimensions, and tokens are a stream: save tokens.reshape(-1)");
  return {type, header.begin, header.values};
}

std::string_view remedy_of(const FileFormat& format) {
  if (!format.remedy.empty()) return format.remedy;
  switch (format.kind) {
    case FileKind::array:
    case FileKind::tokens:
      return "leave TokenFileOptions::raw unset, and its header is read";
    case FileKind::tar:
      return "unpack it; TarShards reads its samples";
    case FileKind::text:
      return "tokenize it; tokens of one byte are torch::kByte";
    case FileKind::model:
    case FileKind::program:
      return "name a file of tokens, such as fineweb_train_000001.bin";
    default:
      return "load it in Python and save the tokens alone, as tokens.tofile(FILE) or "
             "numpy.save(FILE, tokens)";
  }
}

// One-byte tokens may look like text. Others contain zeros, or bytes of all values, except a
// few.
bool may_be_tokens(const FileFormat& format, std::uint64_t size, std::size_t bytes_of_token) {
  constexpr std::uint64_t shortest_text = 64;
  if (!format.by_letters) return false;
  return bytes_of_token == 1 || (format.kind == FileKind::text && size < shortest_text);
}

// Errors: unsupported, with `raw` misuse, for another format.
void refuse_other_format(const MappedFile& file, std::optional<TokenType> raw) {
  const auto format = file_format_of(file.bytes());
  if (!format || may_be_tokens(*format, file.size(), raw ? bytes_of(*raw) : 2)) return;
  throw Error(raw ? Fault::misuse : Fault::unsupported,
              file.name() + ": the file is not tokens alone, but " + std::string(format->name) +
                  ": " + std::string(remedy_of(*format)));
}

}  // namespace

struct StoredTokens::Opened {
  MappedFile file;
  std::optional<MappedFile> index_file = {};
  std::optional<MegatronIndex> index = {};
  TokenRange range = {};
};

StoredTokens::Opened StoredTokens::open(const fs::path& path, std::optional<TokenType> raw) {
  if (!raw) {
    if (const auto names = megatron_files(path)) {
      Opened opened{.file = MappedFile(names->tokens), .index_file = MappedFile(names->index)};
      opened.index.emplace(opened.index_file->name(), opened.index_file->bytes(),
                           opened.file.size());
      opened.range = opened.index->tokens();
      return opened;
    }
  }
  Opened opened{.file = MappedFile(path)};
  const MappedFile& file = opened.file;
  if (file.size() == 0)
    throw Error(Fault::corrupt, file.name() + ": the file is empty: write its tokens again");
  if (!raw) {
    if (is_npy(file.bytes())) {
      opened.range = tokens_of_array(file);
      return opened;
    }
    if (const auto range = parse_llm_c(file.name(), file.bytes())) {
      opened.range = *range;
      return opened;
    }
  }
  refuse_other_format(file, raw);
  require(raw.has_value(), [&] {
    return file.name() +
           ": the file has no header of llm.c, Megatron-LM or NumPy. If it has tokens alone, as "
           "nanoGPT's have, set TokenFileOptions::raw = torch::kUInt16";
  });
  opened.range = parse_raw(file.name(), file.size(), *raw);
  return opened;
}

StoredTokens::StoredTokens(const fs::path& path, std::optional<TokenType> raw)
    : StoredTokens(open(path, raw)) {}

StoredTokens::StoredTokens(Opened opened)
    : file_(std::move(opened.file)),
      index_file_(std::move(opened.index_file)),
      index_(opened.index),
      range_(opened.range) {}

void StoredTokens::require_unchanged() const {
  file_.require_unchanged();
  if (index_file_) index_file_->require_unchanged();
}

void StoredTokens::read(std::uint64_t begin, std::span<std::int64_t> out,
                        std::optional<std::int64_t> vocabulary) const {
  check(begin <= count() && out.size() <= count() - begin, "tokens beyond the end of their file");
  const std::byte* const from = file_.data() + range_.begin + begin * bytes_of(range_.type);
  const std::uint64_t largest = widen_of(range_.type)(from, out);
  // A uint64 may not fit into int64.
  if (!vocabulary && range_.type == TokenType::uint64)
    vocabulary = std::numeric_limits<std::int64_t>::max();
  if (vocabulary && !out.empty() && largest >= static_cast<std::uint64_t>(*vocabulary))
    refuse_token(begin, out, *vocabulary);
}

void StoredTokens::refuse_token(std::uint64_t begin, std::span<const std::int64_t> tokens,
                                std::int64_t vocabulary) const {
  const auto bad = std::ranges::find_if(
      tokens, [&](std::int64_t token) { return token < 0 || token >= vocabulary; });
  const std::uint64_t place = begin + static_cast<std::uint64_t>(bad - tokens.begin());
  throw_corrupt(name(), range_.begin + place * bytes_of(range_.type),
                "a token below the vocabulary's size, " + std::to_string(vocabulary),
                std::to_string(*bad) + " as token " + std::to_string(place));
}

std::vector<std::uint64_t> StoredTokens::document_begins(std::uint64_t begin,
                                                         std::uint64_t end) const {
  if (!index_) return begin == 0 && end > 0 ? std::vector{begin} : std::vector<std::uint64_t>();
  std::vector<std::uint64_t> begins;
  std::uint64_t least = 0;
  std::uint64_t most = index_->documents();
  while (least < most) {  // The first document from `begin` on.
    const std::uint64_t middle = least + (most - least) / 2;
    if (index_->begin_of_document(middle) < begin)
      least = middle + 1;
    else
      most = middle;
  }
  for (; least < index_->documents() && index_->begin_of_document(least) < end; ++least)
    // Empty documents begin where the next one does.
    if (begins.empty() || begins.back() != index_->begin_of_document(least))
      begins.push_back(index_->begin_of_document(least));
  return begins;
}

}  // namespace lockstep::datasets
