// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/tokens/token_format.h"

#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {
namespace {

template <class Number>
Number number_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  Number number{};
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

// --- llm.c ---------------------------------------------------------------------------------------

constexpr std::uint64_t llm_c_header = 256 * sizeof(std::int32_t);

struct LlmCKind {
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr LlmCKind llm_c_kinds[]{{20240520, 1, TokenType::uint16},
                                 {20240801, 7, TokenType::uint32}};

// --- Megatron and fairseq ------------------------------------------------------------------------

constexpr std::string_view megatron_magic{"MMIDIDX\0\0", 9};
constexpr std::string_view older_magic{"TNTIDX\0\0", 8};
constexpr std::uint64_t version_at = 9;
constexpr std::uint64_t type_at = 17;
constexpr std::uint64_t sequences_at = 18;
constexpr std::uint64_t entries_at = 26;
constexpr std::uint64_t fairseq_lengths_at = 26;
constexpr std::uint64_t megatron_lengths_at = 34;
constexpr std::uint64_t bytes_of_sequence = sizeof(std::int32_t) + sizeof(std::int64_t);

// indexed_dataset.py's DType: 6 and 7 are floating point; 9 and 10 are fairseq's.
std::optional<TokenType> type_of_code(std::uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::uint8;
    case 2:
      return TokenType::int8;
    case 3:
      return TokenType::int16;
    case 4:
      return TokenType::int32;
    case 5:
      return TokenType::int64;
    case 8:
      return TokenType::uint16;
    case 9:
      return TokenType::uint32;
    case 10:
      return TokenType::uint64;
    default:
      return std::nullopt;
  }
}

TokenType read_index_type(std::string_view file, std::span<const std::byte> bytes) {
  if (bytes.size() < fairseq_lengths_at)
    throw_corrupt(file, bytes.size(), "34 bytes of Megatron's header", "the end of the file");
  if (const auto version = number_at<std::uint64_t>(bytes, version_at); version != 1)
    throw Error(Fault::unsupported, std::string(file) + ": byte 9: the index has version " +
                                        std::to_string(version) + ", only 1 can be read");
  const auto code = number_at<std::uint8_t>(bytes, type_at);
  const auto type = type_of_code(code);
  if (!type && (code == 6 || code == 7))
    throw Error(Fault::unsupported, std::string(file) + ": byte 17: the tokens are floating point");
  if (!type) throw_corrupt(file, type_at, "a type from 1 to 10", std::to_string(code));
  return *type;
}

}  // namespace

std::size_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8:
      return 1;
    case TokenType::int16:
    case TokenType::uint16:
      return 2;
    case TokenType::int32:
    case TokenType::uint32:
      return 4;
    case TokenType::int64:
    case TokenType::uint64:
      return 8;
  }
  throw Error(Fault::bug, "a type of tokens without a size");
}

std::string_view name_of(TokenType type) {
  constexpr std::string_view names[]{"uint8", "int8",   "int16", "uint16",
                                     "int32", "uint32", "int64", "uint64"};
  return names[static_cast<std::size_t>(type)];
}

std::optional<TokenRange> parse_llm_c(std::string_view file, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::int32_t)) return std::nullopt;
  for (const LlmCKind& kind : llm_c_kinds) {
    if (number_at<std::int32_t>(bytes, 0) != kind.magic) continue;
    if (bytes.size() < llm_c_header)
      throw_corrupt(file, bytes.size(), "1024 bytes of llm.c's header", "the end of the file");
    if (const auto version = number_at<std::int32_t>(bytes, 4); version != kind.version)
      throw Error(Fault::unsupported, std::string(file) + ": byte 4: llm.c's header has version " +
                                          std::to_string(version) + ", only " +
                                          std::to_string(kind.version) + " can be read");
    const auto count = number_at<std::int32_t>(bytes, 8);
    const std::uint64_t data = bytes.size() - llm_c_header;
    if (count < 0 || data != static_cast<std::uint64_t>(count) * bytes_of(kind.type))
      throw_corrupt(file, 8,
                    "a number of " + std::string(name_of(kind.type)) +
                        " tokens that fits the file's size, " + std::to_string(bytes.size()),
                    std::to_string(count));
    return TokenRange{kind.type, llm_c_header, static_cast<std::uint64_t>(count)};
  }
  return std::nullopt;
}

TokenRange parse_raw(std::string_view file, std::uint64_t size, TokenType type) {
  const std::uint64_t surplus = size % bytes_of(type);
  if (surplus != 0)
    throw_corrupt(file, size - surplus, "whole tokens of type " + std::string(name_of(type)),
                  std::to_string(surplus) + " bytes at the end");
  return {type, 0, size / bytes_of(type)};
}

bool is_megatron_index(std::span<const std::byte> bytes) {
  return bytes.size() >= megatron_magic.size() &&
         std::memcmp(bytes.data(), megatron_magic.data(), megatron_magic.size()) == 0;
}

MegatronIndex::MegatronIndex(std::string_view file, std::span<const std::byte> bytes,
                             std::uint64_t bin_size)
    : bytes_(bytes) {
  if (bytes.size() >= older_magic.size() &&
      std::memcmp(bytes.data(), older_magic.data(), older_magic.size()) == 0)
    throw Error(Fault::unsupported,
                std::string(file) +
                    ": an index of fairseq's older kind, whose tokens are stored in several ways: "
                    "preprocess again with --dataset-impl mmap");
  if (!is_megatron_index(bytes))
    throw_corrupt(file, 0, "MMIDIDX and two zero bytes, of Megatron", "something else");
  tokens_.type = read_index_type(file, bytes);
  tokens_.count = bin_size / bytes_of(tokens_.type);
  read_counts(file);
  check_sequences(file, bin_size);
  check_documents(file);
}

void MegatronIndex::read_counts(std::string_view file) {
  sequences_ = number_at<std::uint64_t>(bytes_, sequences_at);
  const std::uint64_t capacity = bytes_.size() - fairseq_lengths_at;
  if (sequences_ > capacity / bytes_of_sequence)
    throw_corrupt(file, sequences_at,
                  "at most " + std::to_string(capacity / bytes_of_sequence) + " sequences",
                  std::to_string(sequences_));
  std::uint64_t left = capacity - sequences_ * bytes_of_sequence;
  is_fairseq_ = left == 0;
  lengths_at_ = is_fairseq_ ? fairseq_lengths_at : megatron_lengths_at;
  documents_ = sequences_;
  if (is_fairseq_) return;

  if (left < sizeof(std::uint64_t))
    throw_corrupt(file, bytes_.size(), "the number of entries", "the end of the file");
  left -= sizeof(std::uint64_t);
  const auto entries = number_at<std::uint64_t>(bytes_, entries_at);
  const bool fits = entries <= left / sizeof(std::int64_t);
  const std::uint64_t modes = fits ? left - entries * sizeof(std::int64_t) : 0;
  if (!fits || (modes != 0 && modes != sequences_))
    throw_corrupt(
        file, entries_at,
        "a document list that ends with the file, at byte " + std::to_string(bytes_.size()),
        std::to_string(entries) + " entries");
  if (entries == 0) throw_corrupt(file, entries_at, "at least one entry", "none");
  documents_ = entries - 1;
}

// They are contiguous and fill X.bin.
void MegatronIndex::check_sequences(std::string_view file, std::uint64_t bin_size) const {
  const std::uint64_t pointers_at = lengths_at_ + sequences_ * sizeof(std::int32_t);
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < sequences_; ++i) {
    if (pointer(i) != end)
      throw_corrupt(
          file, pointers_at + i * sizeof(std::int64_t),
          "byte " + std::to_string(end) + " as the begin of sequence " + std::to_string(i),
          std::to_string(pointer(i)));
    const std::uint64_t bytes = length(i) * bytes_of(tokens_.type);
    if (bytes > bin_size - end)  // A negative length becomes a large one.
      throw_corrupt(file, lengths_at_ + i * sizeof(std::int32_t),
                    "a length that fits the .bin file of " + std::to_string(bin_size) + " bytes",
                    std::to_string(static_cast<std::int32_t>(length(i))));
    end += bytes;
  }
  if (end != bin_size)
    throw_corrupt(file, sequences_at,
                  "sequences that fill the .bin file of " + std::to_string(bin_size) + " bytes",
                  std::to_string(end) + " bytes");
}

void MegatronIndex::check_documents(std::string_view file) const {
  if (is_fairseq_) return;
  const std::uint64_t list_at = lengths_at_ + sequences_ * bytes_of_sequence;
  std::uint64_t least = 0;
  for (std::uint64_t i = 0; i <= documents_; ++i) {
    const std::uint64_t first = first_sequence(i);
    const bool fits = i == 0            ? first == 0
                      : i == documents_ ? first == sequences_
                                        : first >= least && first <= sequences_;
    if (!fits)
      throw_corrupt(file, list_at + i * sizeof(std::int64_t),
                    i == 0            ? "document 0 at sequence 0"
                    : i == documents_ ? std::to_string(sequences_) + " sequences as the end"
                                      : "sequences in rising order",
                    std::to_string(first));
    least = first;
  }
  if (documents_ == 0 && sequences_ != 0)
    throw_corrupt(file, entries_at, "at least one document", "none");
}

std::uint64_t MegatronIndex::length(std::uint64_t sequence) const {
  return number_at<std::uint32_t>(bytes_, lengths_at_ + sequence * sizeof(std::int32_t));
}

std::uint64_t MegatronIndex::pointer(std::uint64_t sequence) const {
  return number_at<std::uint64_t>(
      bytes_, lengths_at_ + sequences_ * sizeof(std::int32_t) + sequence * sizeof(std::int64_t));
}

std::uint64_t MegatronIndex::first_sequence(std::uint64_t document) const {
  if (is_fairseq_) return document;
  return number_at<std::uint64_t>(
      bytes_, lengths_at_ + sequences_ * bytes_of_sequence + document * sizeof(std::int64_t));
}

std::uint64_t MegatronIndex::begin_of_document(std::uint64_t document) const {
  const std::uint64_t sequence = first_sequence(document);
  return sequence == sequences_ ? tokens_.count : pointer(sequence) / bytes_of(tokens_.type);
}

}  // namespace lockstep::datasets
