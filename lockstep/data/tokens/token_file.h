// Files of tokens as a dataset: windows of one length, each with its targets one token later.
//
//   lockstep::TokenFile train("train.bin", {.length = 1024, .vocabulary = 50257});
//   lockstep::DistributedSampler sampler(train.size(), world);
//
// The header tells the format: llm.c (GPT-2's uint16 and Llama 3's uint32), Megatron-LM, fairseq,
// or a .npy array of integers. Files of Megatron-LM and fairseq are named as X.idx, X.bin, or X as
// in
// --data-path. Files without a header, such as nanoGPT's, need TokenFileOptions::raw.
//
// Window i of a file has the tokens from i * stride on: `length` of them as data, and the `length`
// that begin one later as targets. With the default stride each token is a target once, as in llm.c
// and Megatron-LM; the tokens at the end that fill no window are left out. Windows run from one
// document into the next, as GPTs are usually trained; no window runs from one file into the next.
//
// The files are mapped: all ranks of a host share one copy, the page cache's.
//
// Thread safety: all members may be called from several threads at once.
// Errors: corrupt, naming file, byte, expected and found, for a damaged file, for one that was
// changed while in use, and for a token beyond the vocabulary; misuse for a file with too few
// tokens, or with `raw` for one of a known format; unsupported, naming it, for other formats;
// system. Lifetime: the files must not become shorter while they are in use: the kernel then ends
// the process with SIGBUS.

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
  // Tokens of a window.
  std::int64_t length = 1024;

  // Tokens from the begin of one window to the begin of the next. Default: `length`. A smaller one
  // makes windows overlap, so that an epoch has each token several times.
  std::optional<std::int64_t> stride = {};

  // Type of the tokens of files without a header; torch::kUInt16 for nanoGPT's. A file of a known
  // format, such as .npy, .npz, gzip or Parquet, is an Error that names it: its header would be
  // trained on.
  std::optional<at::ScalarType> raw = {};

  // Number of tokens that the model knows. A larger token is an Error, instead of a crash or
  // nonsense in the embedding. Costs nothing that can be measured.
  std::optional<std::int64_t> vocabulary = {};

  // Window i begins in each epoch at another token of [i * stride, (i + 1) * stride), drawn from
  // (seed, epoch, i). For several epochs, in place of nanoGPT's windows at random.
  bool random_begin = false;

  // Token after which a new document begins, such as 50256, GPT-2's <|endoftext|>. Default: the
  // documents of Megatron-LM's index, or the sequences of fairseq's; other files are one document.
  std::optional<std::int64_t> end_of_document = {};

  // Replaces the target that is the first token of another document by ignored_target, because no
  // model can predict it.
  bool mask_document_ends = false;
};

class LOCKSTEP_API TokenFile : public BatchDataset {
 public:
  // The default ignore_index of LibTorch's cross_entropy().
  static constexpr std::int64_t ignored_target = -100;

  explicit TokenFile(const std::filesystem::path& file, const TokenFileOptions& options = {});

  // Several files, in this order. All have the same `options`.
  explicit TokenFile(const std::vector<std::filesystem::path>& files,
                     const TokenFileOptions& options = {});
  ~TokenFile() override;

  // Number of tokens in all files.
  std::int64_t tokens() const;

  // Places in the window at which a document begins, in rising order; the window's first token
  // counts only if a document begins there. For attention that does not look into other documents.
  // `seed` and `epoch` are the batch's; they matter with random_begin only.
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
