// Files of tokens as a dataset: windows of a fixed length, with targets one token later.
//
//   lockstep::TokenFile train("train.bin", {.length = 1024, .vocabulary = 50257});
//
// The header determines the format: llm.c (GPT-2's uint16 and Llama 3's uint32), Megatron-LM,
// fairseq, or a .npy array of integers. Name files of Megatron-LM and fairseq as X.idx, X.bin, or
// X. Files without a header, such as nanoGPT's, need TokenFileOptions::raw.
//
// Window i begins at token i * stride of its file. Its data are `length` tokens; its targets begin
// one token later. Tokens at the end that do not fill a window are omitted. A window may span
// documents, but not files.
//
// Thread safety: several threads may call all members at once.
// Errors: corrupt, with file, byte, expected and found value. It is thrown for a damaged file, one
// that changed while in use, and a token beyond the vocabulary. Misuse for too few tokens, or a
// known format with `raw`. Unsupported, naming the format, for other formats. System.
// Lifetime: the files are mapped. Reads raise SIGBUS if they are truncated while in use.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/batch_dataset.h"

namespace lockstep {

struct TokenFileOptions {
  // Tokens per window.
  std::int64_t length = 1024;

  // Tokens between the beginnings of two windows; default: `length`. With a smaller stride, an
  // epoch has each token several times.
  std::optional<std::int64_t> stride = {};

  // Type of the tokens of files without a header: torch::kUInt16 for nanoGPT's. A known format,
  // such as .npy or gzip, is an Error: its header would become training data.
  std::optional<at::ScalarType> raw = {};

  // The model's number of tokens. A larger token is an Error, not a crash or a wrong embedding.
  std::optional<std::int64_t> vocabulary = {};

  // In each epoch, window i begins at another token of [i * stride, (i + 1) * stride), drawn from
  // (seed, epoch, i). For several epochs.
  bool random_begin = false;

  // Token after which a document begins, such as 50256, GPT-2's <|endoftext|>. Default: the
  // documents of Megatron-LM's index, or fairseq's sequences; other files are one document.
  std::optional<std::int64_t> end_of_document = {};

  // Replaces a target that is the first token of another document by ignored_target.
  bool mask_document_ends = false;
};

class LOCKSTEP_API TokenFile : public BatchDataset {
 public:
  // The default ignore_index of LibTorch's cross_entropy().
  static constexpr std::int64_t ignored_target = -100;

  explicit TokenFile(const std::filesystem::path& file, const TokenFileOptions& options = {});

  // Several files in this order, with the same options.
  explicit TokenFile(const std::vector<std::filesystem::path>& files,
                     const TokenFileOptions& options = {});
  ~TokenFile() override;

  // Number of tokens in all files.
  std::int64_t tokens() const;

  // Positions in the window at which documents begin, for attention within one document. The first
  // token counts only if a document begins there. `seed` and `epoch` matter only with random_begin.
  std::vector<std::int64_t> document_begins(std::size_t index, std::uint64_t seed = 0,
                                            std::int64_t epoch = 0) const;

  std::size_t size() const override;
  SampleSpec data_spec() const override;    // int64 [length].
  SampleSpec target_spec() const override;  // int64 [length].
  void fill(const BatchRows& rows) const override;
  void will_read(std::span<const std::size_t> indices) const override;
  std::string sample_name(std::size_t index) const override;

 private:
  struct State;
  const std::unique_ptr<const State> state_;
};

}  // namespace lockstep
