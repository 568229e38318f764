// Files of tokens as a dataset: windows of fixed length, with targets one token later.
//
//   lockstep::TokenFile train("train.bin", {.length = 1024, .vocabulary = 50257});
//
// The header determines the format: llm.c (GPT-2's uint16 and Llama 3's uint32), Megatron-LM,
// fairseq, or a .npy array of integers. Name files of Megatron-LM and fairseq as X.idx, X.bin, or
// X. Files without a header need TokenFileOptions::raw.
//
// Window i of a file begins at its token i * stride. An incomplete last window is omitted. A window
// may span documents, but not files.
//
// Thread safety: all members may be called concurrently.
// Errors: corrupt for a damaged file, one that changed while in use, and a token beyond the
// vocabulary. Misuse for too few tokens or a missing `raw`. Unsupported for other formats. System.
// Lifetime: reads raise SIGBUS if a file is truncated while in use.

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

  // Tokens between the beginnings of two windows; default: `length`. A smaller stride repeats
  // tokens within an epoch.
  std::optional<std::int64_t> stride = {};

  // Type of tokens without a header: torch::kUInt16 for nanoGPT's. A known format, such as .npy or
  // gzip, is an Error: its header would become training data.
  std::optional<at::ScalarType> raw = {};

  // The model's number of tokens. A token outside [0, vocabulary) is an Error.
  std::optional<std::int64_t> vocabulary = {};

  // For several epochs: window i begins at a token of [i * stride, (i + 1) * stride), drawn from
  // (seed, epoch, index). It begins no later than the last window that fits the file.
  bool random_begin = false;

  // Token before each document, such as GPT-2's <|endoftext|>, 50256. Default: the documents of
  // Megatron-LM's index, or fairseq's sequences; other files are one document.
  std::optional<std::int64_t> end_of_document = {};

  // Replaces targets that begin a document by ignored_target. Misuse if no documents are known.
  bool mask_document_ends = false;
};

class LOCKSTEP_API TokenFile : public BatchDataset {
 public:
  // The default ignore_index of LibTorch's cross_entropy().
  static constexpr std::int64_t ignored_target = -100;

  explicit TokenFile(const std::filesystem::path& file, const TokenFileOptions& options = {});

  explicit TokenFile(const std::vector<std::filesystem::path>& files,
                     const TokenFileOptions& options = {});
  ~TokenFile() override;

  // In all files.
  std::int64_t tokens() const;

  // Positions in the window at which documents begin, for attention within one document; 0 only if
  // one begins there. `seed` and `epoch` matter only with random_begin.
  std::vector<std::int64_t> document_begins(std::size_t index, std::uint64_t seed = 0,
                                            std::int64_t epoch = 0) const;

  std::size_t size() const override;
  SampleSpec data_spec() const override;    // int64 [length].
  SampleSpec target_spec() const override;  // int64 [length].
  void fill(const BatchRows& rows) const override;
  std::string sample_name(std::size_t index) const override;

 private:
  struct State;
  const std::unique_ptr<const State> state_;
};

}  // namespace lockstep
