// Trains a small GPT on bytes of text, on a mesh of pipeline stages, replicas, context and tensor
// parallel ranks, and generates text.
//   lockstep run -n 4 gpt --cp 4 --length 1024 --batch 1
//   lockstep run -n 4 gpt --pp 2 --tp 2 --schedule zb1p
//   lockstep plan -n 4 gpt --layers 8

// SPDX-License-Identifier: Apache-2.0
#include "examples/models/gpt.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/command_line.h"
#include "lockstep/toolkit.h"

namespace {

struct TextOptions {
  std::string text = "/usr/share/common-licenses";  // In Debian and Ubuntu: 250 KB of English.
  std::vector<std::filesystem::path> tokens = {};
  std::int64_t vocabulary = 50257;  // GPT-2's, of tokens.
  bool raw = false;
  int pp = 1;
  int dp = -1;
  int cp = 1;
  int tp = 1;
  bool fsdp = false;
  std::string schedule = "1f1b";
  int microbatches = 4;
  std::vector<int> cut = {};
  bool recompute = false;
  std::int64_t steps = 200;
  std::int64_t batch = 16;  // Sequences over all replicas.
  std::int64_t length = 64;
  std::int64_t width = 128;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  double lr = 3e-3;
  std::uint64_t seed = 0;
  std::int64_t sample = 200;
  std::string prompt = "You may";
  std::string checkpoint = {};
};

constexpr std::int64_t most = 1'000'000'000;  // Limit of every count.

std::string unless_text(const std::string& text) {
  return text.empty() ? "at least one byte is needed" : "";
}

TextOptions read_command_line(int argc, char** argv) {
  TextOptions options;
  const CLI::Range positive(std::int64_t{1}, most), not_negative(std::int64_t{0}, most);
  CLI::App app(
      "Trains a small GPT on text, byte by byte, and lets it write some; or on tokens.\n"
      "  lockstep run -n 2 gpt --tp 2\n"
      "  lockstep run -n 4 gpt --tokens fineweb_train_000001.bin --length 1024\n"
      "  lockstep run -n 4 gpt --dp 2 --tp 2 --recompute --checkpoint runs/gpt");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "a file, or a folder of files, to learn from");
  CLI::Option* const tokens =
      app.add_option("--tokens", options.tokens,
                     "files of tokens to learn from: llm.c's, Megatron's, or nanoGPT's with --raw");
  app.add_option("--vocabulary", options.vocabulary, "number of different tokens")
      ->check(positive)
      ->needs(tokens);
  app.add_flag("--raw", options.raw, "the files have tokens alone, as uint16")->needs(tokens);
  app.add_option("--pp", options.pp, "stages of a pipeline")->check(positive);
  app.add_option("--dp", options.dp, "replicas; -1: as many as the ranks allow");
  app.add_option("--cp", options.cp, "ranks that share one replica's sequences")->check(positive);
  app.add_option("--tp", options.tp, "ranks that share one replica's layers")->check(positive);
  app.add_flag("--fsdp", options.fsdp,
               "replicas of a host share one copy of weights and optimizer state");
  app.add_option("--schedule", options.schedule, "of a pipeline")
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "looped_bfs", "zb1p", "zbv"}));
  app.add_option("--microbatches", options.microbatches, "of a pipeline's batch")->check(positive);
  app.add_option("--cut", options.cut,
                 "first layers of a pipeline's stages but the first; the embedding is layer 0")
      ->delimiter(',')
      ->check(positive);
  app.add_flag("--recompute", options.recompute, "keep only the inputs of blocks for backward()");
  app.add_option("--steps", options.steps)->check(not_negative);
  app.add_option("--batch", options.batch, "sequences a step, of all replicas together")
      ->check(positive);
  app.add_option("--length", options.length, "bytes or tokens of a sequence")->check(positive);
  app.add_option("--width", options.width)->check(positive);
  app.add_option("--layers", options.layers)->check(positive);
  app.add_option("--heads", options.heads)->check(positive);
  app.add_option("--lr", options.lr)
      ->check(CLI::Range(1e-12, 1000.0))
      ->check(CLI::Validator(unless_number, ""));
  app.add_option("--seed", options.seed)->check(not_negative);
  app.add_option("--sample", options.sample, "bytes to write at the end")
      ->check(not_negative)
      ->excludes(tokens);
  app.add_option("--prompt", options.prompt, "what they begin with")
      ->check(CLI::Validator(unless_text, "TEXT"));
  app.add_option("--checkpoint", options.checkpoint,
                 "a folder: saved at the end, resumed at start");
  parse(app, argc, argv);
  if (!options.tokens.empty()) options.sample = 0;  // This program cannot convert tokens to text.
  return options;
}

torch::Tensor read_text(const std::string& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(path);
  }
  std::string bytes;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    lockstep::require(stream.good(), [&] { return "cannot read " + file.string(); });
    bytes.append(std::istreambuf_iterator<char>(stream), {});
  }
  return torch::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, torch::kByte)
      .to(torch::kLong);
}

// The ranks of a replica have the same sequences.
class Batches {
 public:
  virtual ~Batches() = default;

  // This replica's sequences of a step, [n, length + 1].
  virtual torch::Tensor of_step(std::int64_t step) = 0;
};

// Positions of the sequences depend on seed and step.
class TextBatches : public Batches {
 public:
  TextBatches(const TextOptions& options, std::int64_t replicas, std::int64_t replica)
      : options_(options), replicas_(replicas), replica_(replica), text_(read_text(options.text)) {
    lockstep::require(text_.numel() > options.length + 1, [&] {
      return options.text + " has " + std::to_string(text_.numel()) +
             " bytes: too few for one sequence";
    });
  }

  torch::Tensor of_step(std::int64_t step) override {
    auto generator = at::detail::createCPUGenerator(options_.seed * 1'000'003 + step);
    const auto begins = torch::randint(text_.numel() - options_.length - 1, {options_.batch, 1},
                                       generator, torch::kLong);
    return text_.index({begins + torch::arange(options_.length + 1)})
        .chunk(replicas_)[static_cast<std::size_t>(replica_)];
  }

 private:
  const TextOptions& options_;
  const std::int64_t replicas_;
  const std::int64_t replica_;
  const torch::Tensor text_;
};

// Each sequence once per epoch. Positions depend on the step: any number of replicas can continue a
// training.
class TokenBatches : public Batches {
 public:
  TokenBatches(const TextOptions& options, std::int64_t replicas, std::int64_t replica)
      : batch_(options.batch),
        tokens_(options.tokens, {.length = options.length,
                                 .raw = options.raw ? std::optional(torch::kUInt16) : std::nullopt,
                                 .vocabulary = options.vocabulary}),
        sampler_(tokens_.size(), static_cast<int>(replicas), static_cast<int>(replica),
                 {.seed = options.seed, .drop_last = true}),
        loader_(tokens_, sampler_,
                {.batch_size = static_cast<std::size_t>(options.batch / replicas),
                 .seed = options.seed,
                 .drop_last = true}) {}

  torch::Tensor of_step(std::int64_t step) override {
    if (next_ && step == step_ + 1)
      ++*next_;
    else
      next_.reset();
    if (!next_ || *next_ == std::default_sentinel) begin(step);
    step_ = step;
    const lockstep::Batch& batch = **next_;
    return torch::cat({batch.data, batch.target.slice(1, -1)}, 1);
  }

 private:
  void begin(std::int64_t step) {
    next_.reset();
    const auto steps = static_cast<std::int64_t>(loader_.size());
    sampler_.set_epoch(step / steps, static_cast<std::size_t>(step % steps * batch_));
    next_.emplace(loader_.begin());
  }

  const std::int64_t batch_;
  const lockstep::TokenFile tokens_;
  lockstep::DistributedSampler sampler_;
  lockstep::DataLoader loader_;
  std::optional<lockstep::DataLoader::Iterator> next_;
  std::int64_t step_ = -1;  // Step of the batch at `next_`.
};

std::unique_ptr<Batches> make_batches(const TextOptions& options, std::int64_t replicas,
                                      std::int64_t replica) {
  if (options.tokens.empty()) return std::make_unique<TextBatches>(options, replicas, replica);
  return std::make_unique<TokenBatches>(options, replicas, replica);
}

// The last T bytes of `text`: [1, T].
torch::Tensor end_of(const std::string& text, std::int64_t length) {
  std::vector<std::int64_t> bytes;
  for (const char c : text.substr(text.size() - std::min<std::size_t>(text.size(), length)))
    bytes.push_back(static_cast<unsigned char>(c));
  return torch::tensor(bytes).unsqueeze(0);
}

// `logits`: [N, T, a part of the vocabulary].
int draw(const torch::Tensor& logits, const lockstep::ProcessGroup& tp) {
  const auto all = lockstep::gather_from_parallel_region(logits[0][-1], tp, -1);
  return torch::multinomial(torch::softmax(all / 0.8, -1), 1).item<int>();
}

// next(tokens) draws a byte, the same on all ranks.
template <class Next>
std::string written(const TextOptions& options, const Next& next) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(options.seed);
  std::string text = options.sample > 0 ? options.prompt : "";
  for (std::int64_t i = 0; i < options.sample; ++i)
    text += static_cast<char>(next(end_of(text, options.length)));
  return text;
}

void require_divisible(const TextOptions& options, const lockstep::DeviceMesh& mesh) {
  lockstep::require(options.batch % mesh.size("dp") == 0, [&] {
    return "--batch " + std::to_string(options.batch) + " is no multiple of " +
           std::to_string(mesh.size("dp")) + " replicas";
  });
  lockstep::require(options.pp == 1 || options.cp == 1,
                    "--cp is not for pipelines: their sequences are whole");
  lockstep::require(options.pp == 1 || options.batch / mesh.size("dp") >= options.microbatches,
                    [&] {
                      return "--batch " + std::to_string(options.batch) + " has " +
                             std::to_string(options.batch / mesh.size("dp")) +
                             " sequences a replica: too few for " +
                             std::to_string(options.microbatches) + " microbatches";
                    });
  lockstep::require(options.width % options.heads == 0, [&] {
    return "--width " + std::to_string(options.width) + " is no multiple of " +
           std::to_string(options.heads) + " heads";
  });
  lockstep::require(options.heads % options.tp == 0, [&] {
    return std::to_string(options.heads) + " heads cannot be divided among " +
           std::to_string(options.tp) + " tensor parallel ranks";
  });
}

// Returns the newest checkpoint's step, if any.
std::optional<std::int64_t> resume(lockstep::Checkpointer& checkpoints,
                                   const lockstep::TrainingState& state, const TextOptions& options,
                                   bool says_so) {
  const auto resumed = checkpoints.resume(state);
  if (!resumed) return std::nullopt;
  lockstep::require(resumed->step <= options.steps, [&] {
    return "--steps " + std::to_string(options.steps) + " are fewer than the " +
           std::to_string(resumed->step) + " of " + resumed->directory.string();
  });
  if (says_so)
    std::cerr << "resumed after step " << resumed->step << ", from " << resumed->directory.string()
              << std::endl;
  return resumed->step;
}

struct Trained {
  std::int64_t step = 0;
  std::optional<double> loss = {};  // After the last step, if there was one.
};

// Without a digest: several stages have the weights.
void report(const lockstep::DeviceMesh& mesh, const Trained& trained, const std::string& digest,
            const std::string& sample) {
  std::cout << "pp " << mesh.size("pp") << ", dp " << mesh.size("dp") << ", cp " << mesh.size("cp")
            << ", tp " << mesh.size("tp") << ": ";
  if (trained.loss) std::cout << "loss " << std::setprecision(9) << *trained.loss << " ";
  std::cout << "after " << trained.step << " steps";
  if (!digest.empty()) std::cout << "; weights " << digest.substr(0, 12);
  std::cout << "\n" << sample << (sample.empty() ? "" : "\n") << std::flush;
}

// backward() computes a batch's gradients and returns its loss; clip() clips them.
template <class Model, class Owner, class Optimizer, class Clip, class Backward>
Trained train_steps(Model& model, const Owner& owner, Optimizer& adamw, const Clip& clip,
                    const lockstep::DeviceMesh& mesh, const TextOptions& options,
                    const Backward& backward) {
  Trained trained;
  auto& [step, loss] = trained;
  lockstep::TrainingState state;
  state.add("model", model);
  state.add("optimizer", adamw, owner);
  state.add("step", step);
  std::optional<lockstep::Checkpointer> checkpoints;
  std::optional<std::int64_t> resumed;
  if (!options.checkpoint.empty()) {
    checkpoints.emplace(options.checkpoint, mesh.group());  // Whole tensors: any mesh loads them.
    resumed = resume(*checkpoints, state, options, mesh.group().rank() == 0);
  }
  const auto batches = make_batches(options, mesh.size("dp"), mesh.rank("dp"));
  lockstep::Progress progress(options.steps, {.enabled = mesh.group().rank() == 0, .done = step});
  for (; step < options.steps; ++step) {
    const torch::Tensor batch = batches->of_step(step);
    adamw.zero_grad();
    torch::Tensor mean = torch::tensor(backward(batch), torch::kDouble);
    clip();
    adamw.step();
    lockstep::all_reduce(mean, mesh[{"dp", "cp"}], lockstep::ReduceOp::average);
    loss = mean.item<double>();
    progress.step(options.batch, loss);
  }
  if (checkpoints && step != resumed) {
    checkpoints->save(step, state);
    checkpoints->wait();
  }
  return trained;
}

// Calls `use` with all weights: on several hosts, a fully sharded model has parts.
template <class Parallel, class Use>
void with_weights(Parallel& parallel, const Use& use) {
  if constexpr (std::derived_from<Parallel, lockstep::FullyShardedBase>)
    parallel.with_gathered(use);
  else
    use();
}

template <class Parallel, class Optimizer, class Clip>
void train(Parallel& parallel, Optimizer& adamw, const Clip& clip, const lockstep::DeviceMesh& mesh,
           const TextOptions& options) {
  Gpt& gpt = *parallel.module();
  const auto of_rank = [&](const torch::Tensor& tokens) {  // [N, T], its part of each sequence.
    return lockstep::nn::sequence_part(tokens, 1, mesh["cp"], Gpt::order);
  };
  const auto backward = [&](const torch::Tensor& batch) {
    const torch::Tensor logits = parallel(of_rank(batch.slice(1, 0, -1)));
    const auto mean = lockstep::cross_entropy(logits.flatten(0, 1),
                                              of_rank(batch.slice(1, 1)).flatten(), mesh["tp"]);
    mean.backward();
    return mean.template item<double>();
  };
  const Trained trained = train_steps(parallel, gpt, adamw, clip, mesh, options, backward);
  gpt.eval();
  gpt.share_sequences({});
  std::string digest, sample;
  with_weights(parallel, [&] {
    digest = lockstep::sha256(gpt);
    sample = written(options, [&](const torch::Tensor& tokens) {
      return draw(gpt.forward(tokens), mesh["tp"]);
    });
  });
  if (mesh.group().rank() == 0) report(mesh, trained, digest, sample);
}

template <class Optimizer, class Clip>
void train_stages(lockstep::Pipeline& pipeline, Optimizer& adamw, const Clip& clip,
                  const lockstep::DeviceMesh& mesh, const TextOptions& options) {
  const auto backward = [&](const torch::Tensor& batch) {
    return pipeline.step(
        batch.slice(1, 0, -1), [&](const torch::Tensor& logits, const lockstep::Microbatch& part) {
          return lockstep::cross_entropy(logits.flatten(0, 1), part.of(batch.slice(1, 1)).flatten(),
                                         mesh["tp"]);
        });
  };
  const Trained trained = train_steps(pipeline, pipeline, adamw, clip, mesh, options, backward);
  pipeline.eval();
  const std::string sample = written(options, [&](const torch::Tensor& tokens) {
    std::optional<int> byte;  // Each microbatch has the same sequence.
    const auto next = [&](const torch::Tensor& logits, const lockstep::Microbatch&) {
      if (!byte) byte = draw(logits, mesh["tp"]);
      return torch::tensor(*byte, torch::kDouble);
    };
    return static_cast<int>(
        std::lround(pipeline.evaluate(tokens.expand({pipeline.order().microbatches, -1}), next)));
  });
  if (mesh.group().rank() == 0) report(mesh, trained, "", sample);
}

void train_pipeline(const GptOptions& gpt, const lockstep::DeviceMesh& mesh,
                    const TextOptions& options) {
  lockstep::LayerList layers = gpt_layers(gpt);
  layers.parallelize(mesh["tp"], gpt_layers_plan());
  lockstep::PipelineOptions pipeline_options{
      .schedule = lockstep::parse_pipeline_schedule(options.schedule),
      .microbatches = options.microbatches,
      .cut = options.cut,
      .data_parallel = mesh["dp"]};
  if (options.fsdp) pipeline_options.fully_sharded = {.units = {"transformer.h.*"}};
  lockstep::Pipeline pipeline(layers, mesh["pp"], pipeline_options);
  const torch::optim::AdamWOptions adamw_options(options.lr);
  if (options.fsdp) {
    lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(*pipeline.data_parallel(),
                                                           pipeline.parameters(), adamw_options);
    train_stages(
        pipeline, adamw, [&] { pipeline.clip_grad_norm_(adamw, 1.0); }, mesh, options);
  } else {
    lockstep::AdamW adamw(pipeline.parameters(), adamw_options);
    train_stages(
        pipeline, adamw, [&] { pipeline.clip_grad_norm_(1.0); }, mesh, options);
  }
}

void train_whole(const GptOptions& gpt_options, const lockstep::DeviceMesh& mesh,
                 const TextOptions& options) {
  const auto gpt = std::make_shared<Gpt>(gpt_options);
  lockstep::parallelize_module(*gpt, mesh["tp"], gpt_plan());
  const auto replicas = mesh[{"dp", "cp"}];  // Each has all weights and some tokens.
  if (options.cp > 1) gpt->share_sequences(mesh["cp"]);
  const torch::optim::AdamWOptions adamw_options(options.lr);
  if (options.fsdp) {
    lockstep::FullyShardedDataParallel fsdp(gpt, replicas, {.units = {"transformer.h.*"}});
    lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(fsdp, gpt->parameters(), adamw_options);
    train(
        fsdp, adamw, [&] { adamw.clip_grad_norm_(*gpt, 1.0); }, mesh, options);
  } else {
    lockstep::DistributedDataParallel ddp(gpt, replicas);
    lockstep::AdamW adamw(gpt->parameters(), adamw_options);
    train(
        ddp, adamw, [&] { lockstep::clip_grad_norm_(*gpt, 1.0); }, mesh, options);
  }
}

// Under `lockstep plan`, measures the model and returns true.
bool plan(const GptOptions& gpt, const TextOptions& options) {
  const torch::Tensor batch = make_batches(options, /*replicas=*/1, /*replica=*/0)->of_step(0);
  return lockstep::plan_if_asked(
      gpt_layers(gpt), batch.slice(1, 0, -1),
      [&](const torch::Tensor& logits, const lockstep::Microbatch& part,
          const lockstep::ProcessGroup& tp) {
        return lockstep::cross_entropy(logits.flatten(0, 1), part.of(batch.slice(1, 1)).flatten(),
                                       tp);
      },
      {.tensor_parallel = gpt_layers_plan(), .context_parallel = true, .fully_sharded = true});
}

int train(const TextOptions& options) {
  const GptOptions gpt_options{.vocabulary = options.tokens.empty() ? 256 : options.vocabulary,
                               .block_size = options.length,
                               .layers = options.layers,
                               .heads = options.heads,
                               .width = options.width,
                               .recompute = options.recompute};
  if (plan(gpt_options, options)) return 0;

  auto world = lockstep::init_process_group();
  const lockstep::DeviceMesh mesh(
      world, {{"pp", options.pp}, {"dp", options.dp}, {"cp", options.cp}, {"tp", options.tp}});
  require_divisible(options, mesh);
  torch::manual_seed(options.seed);
  if (options.pp > 1)
    train_pipeline(gpt_options, mesh, options);
  else
    train_whole(gpt_options, mesh, options);
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const TextOptions options = read_command_line(argc, argv);
  return lockstep::record([&] { return train(options); });
}
