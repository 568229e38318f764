// Files of tokens as a dataset: windows of a fixed length, with targets one token later.
//
//   lockstep::TokenFile train("train.bin", {.length = 1024, .vocabulary = 50257});
//   lockstep::DistributedSampler sampler(train.size(), world);
//
// The header determines the format: llm.c (GPT-2's uint16 and Llama 3's uint32), Megatron-LM,
// fairseq, or a .npy array of integers. Name files of Megatron-LM and fairseq as X.idx, X.bin, or
// X. Files without a header, such as nanoGPT's, need TokenFileOptions::raw.
//
// Window i begins at token i * stride of its file. Its data are `length` tokens; its targets are
// the `length` tokens that begin one later. With the default stride each token is a target once, as
// in llm.c and Megatron-LM; tokens at the end that do not fill a window are omitted. A window may
// span documents, as in the usual training of GPTs, but not files.
//
// The files are mapped, so all ranks of a host share the page cache.
//
// Thread safety: several threads may call all members at once.
// Errors: corrupt, with file, byte, expected and found value, for a damaged file, one that changed
// while in use, and a token beyond the vocabulary; misuse for too few tokens, or a known format
// with `raw`; unsupported, naming the format, for other formats; system.
// Lifetime: do not truncate the files while they are in use: reads then raise SIGBUS.

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

  // Distance of the beginnings of two windows, in tokens. Default: `length`. With a smaller stride,
  // windows overlap, and an epoch has each token several times.
  std::optional<std::int64_t> stride = {};

  // Type of the tokens of files without a header: torch::kUInt16 for nanoGPT's. A known format,
  // such as .npy, .npz, gzip or Parquet, is an Error that names it: its header would become
  // training data.
  std::optional<at::ScalarType> raw = {};

  // Number of tokens of the model. A larger token is an Error, instead of a crash or wrong values
  // in the embedding. The check has no measurable cost.
  std::optional<std::int64_t> vocabulary = {};

  // In each epoch, window i begins at another token of [i * stride, (i + 1) * stride), drawn from
  // (seed, epoch, i). For several epochs, instead of nanoGPT's random windows.
  bool random_begin = false;

  // Token after which a document begins, such as 50256, GPT-2's <|endoftext|>. Default: the
  // documents of Megatron-LM's index, or fairseq's sequences; other files are one document.
  std::optional<std::int64_t> end_of_document = {};

  // Replaces a target that is the first token of another document by ignored_target, because no
  // model can predict it.
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

  // Positions in the window at which a document begins, in rising order. The first token counts
  // only if a document begins there. Use it for attention within one document. `seed` and `epoch`
  // are the batch's; they matter only with random_begin.
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
