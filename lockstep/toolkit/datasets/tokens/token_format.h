// Files of tokens: the headers of llm.c, Megatron-LM and fairseq, and files without a header.
// Numbers are little-endian. Frozen by their projects:
// - llm.c (dev/data/data_common.py): 256 int32: magic, version, number of tokens, zeros. Tokens
//   follow: uint16 (magic 20240520, version 1: GPT-2) or uint32 (20240801, 7: Llama 3).
// - Megatron-LM (core/datasets/indexed_dataset.py): X.bin has only tokens. X.idx is "MMIDIDX\0\0",
//   u64 version 1, u8 type, u64 sequences, u64 entries of the document list. Arrays follow: i32
//   length of each sequence, i64 first byte of each, i64 first sequence of each document. The last
//   entry is the number of sequences. A multimodal index adds an i8 mode per sequence.
// - fairseq (data/indexed_dataset.py, MMapIndexedDataset): as Megatron-LM, without entries and list
//   of documents. Each sequence is a document.
// - nanoGPT (data/*/prepare.py): only tokens, uint16.
//
// Independent of LibTorch, for fuzzing.
// Errors: corrupt; unsupported for other versions, floats, and fairseq's older index.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::datasets {

enum class TokenType { uint8, int8, int16, uint16, int32, uint32, int64, uint64 };

std::size_t bytes_of(TokenType type);
std::string_view name_of(TokenType type);

struct TokenRange {
  TokenType type = TokenType::uint16;
  std::uint64_t begin = 0;  // Offset of the first token, in bytes.
  std::uint64_t count = 0;
};

// Empty without the magic number.
std::optional<TokenRange> parse_llm_c(std::string_view file, std::span<const std::byte> bytes);

TokenRange parse_raw(std::string_view file, std::uint64_t size, TokenType type);

// Also true for an index of fairseq.
bool is_megatron_index(std::span<const std::byte> bytes);

// The documents of an X.idx. Does not own the bytes.
class MegatronIndex {
 public:
  // Validates all numbers. `bin_size`: of X.bin.
  MegatronIndex(std::string_view file, std::span<const std::byte> bytes, std::uint64_t bin_size);

  const TokenRange& tokens() const { return tokens_; }

  std::uint64_t documents() const { return documents_; }

  // Index of the document's first token; for documents(), the number of tokens.
  std::uint64_t begin_of_document(std::uint64_t document) const;

 private:
  void read_counts(std::string_view file);
  void check_sequences(std::string_view file, std::uint64_t bin_size) const;
  void check_documents(std::string_view file) const;
  std::uint64_t length(std::uint64_t sequence) const;
  std::uint64_t pointer(std::uint64_t sequence) const;
  std::uint64_t first_sequence(std::uint64_t document) const;

  std::span<const std::byte> bytes_;
  TokenRange tokens_;
  bool is_fairseq_ = false;
  std::uint64_t lengths_at_ = 0;
  std::uint64_t sequences_ = 0;
  std::uint64_t documents_ = 0;
};

}  // namespace lockstep::datasets
