// Fine-tunes a GPT-2 or a LLaMA from Hugging Face with LoRA, and saves it for from_pretrained().
//   lockstep run -n 2 fine_tuning --model SmolLM-135M --tokens tokens.safetensors --out tuned
//
// The folder is from save_pretrained(). The model's tokenizer creates "tokens" [sequences, length]
// in Python:
//   save_file({"tokens": torch.tensor(tokenizer(texts)["input_ids"])}, "tokens.safetensors")

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/command_line.h"
#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/names.h"
#include "lockstep/toolkit.h"

namespace {

namespace fs = std::filesystem;

struct FineTuningOptions {
  fs::path model;
  fs::path tokens;
  fs::path out;
  std::int64_t steps = 20;
  std::int64_t batch = 4;  // Sequences of each rank.
  double lr = 1e-3;
  std::int64_t rank = 8;  // Rank of LoRA's matrices.
  std::uint64_t max_shard_bytes = 5'000'000'000;
  fs::path logits;
};

FineTuningOptions read_command_line(int argc, char** argv) {
  FineTuningOptions options;
  constexpr std::int64_t most = 1'000'000;
  const CLI::Range positive(std::int64_t{1}, most), not_negative(std::int64_t{0}, most);
  CLI::App app("Fine-tunes a GPT-2 or a LLaMA of Hugging Face with LoRA.");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", options.model, "a folder that save_pretrained() has written")
      ->required();
  app.add_option("--tokens", options.tokens, "a file with the tensor \"tokens\"")->required();
  app.add_option("--out", options.out, "folder for the fine-tuned model");
  app.add_option("--steps", options.steps, "steps of AdamW")->check(not_negative);
  app.add_option("--batch", options.batch, "sequences of each rank in a step")->check(positive);
  app.add_option("--lr", options.lr, "learning rate")->check(unless_number);
  app.add_option("--rank", options.rank, "rank of LoRA's matrices")->check(positive);
  app.add_option("--max-shard-bytes", options.max_shard_bytes, "limit of each file of weights");
  app.add_option("--logits", options.logits, "writes the logits of the first sequences at the end");
  parse(app, argc, argv);
  return options;
}

nlohmann::json read_config(const fs::path& folder) {
  std::ifstream file(folder / "config.json");
  if (!file) throw std::runtime_error((folder / "config.json").string() + " cannot be read");
  return nlohmann::json::parse(file);
}

GptOptions gpt_options(const nlohmann::json& config) {
  return {.vocabulary = config.at("vocab_size"),
          .block_size = config.at("n_positions"),
          .layers = config.at("n_layer"),
          .heads = config.at("n_head"),
          .width = config.at("n_embd")};
}

LlamaOptions llama_options(const nlohmann::json& config) {
  LlamaOptions options{.vocabulary = config.at("vocab_size"),
                       .layers = config.at("num_hidden_layers"),
                       .heads = config.at("num_attention_heads"),
                       .width = config.at("hidden_size"),
                       .hidden = config.at("intermediate_size"),
                       .eps = config.at("rms_norm_eps"),
                       .tied = config.value("tie_word_embeddings", false)};
  options.kv_heads = config.value("num_key_value_heads", options.heads);
  if (config.contains("rope_scaling") && !config.at("rope_scaling").is_null())
    throw std::runtime_error("rope_scaling is not supported");
  // Newer versions of transformers store theta among the parameters of the rotations.
  const nlohmann::json rotations = config.value("rope_parameters", config);
  options.theta = rotations.value("rope_theta", 10000.0);
  if (rotations.value("rope_type", "default") != "default")
    throw std::runtime_error("rope_type " + rotations.at("rope_type").dump() + " is not supported");
  return options;
}

// This rank's sequences in a step.
torch::Tensor batch_of(const torch::Tensor& tokens, std::int64_t step,
                       const FineTuningOptions& options, const lockstep::ProcessGroup& world) {
  const std::int64_t first = (step * world.size() + world.rank()) * options.batch;
  return tokens.index_select(0, torch::arange(first, first + options.batch) % tokens.size(0));
}

template <class Model>
torch::Tensor loss_of(lockstep::DistributedDataParallel<Model>& ddp, const torch::Tensor& batch) {
  const torch::Tensor logits = ddp(batch.slice(1, 0, -1));
  return torch::cross_entropy_loss(logits.flatten(0, 1), batch.slice(1, 1).flatten());
}

// Hugging Face's names, and the layers to adapt.
struct Layout {
  lockstep::NameTable from;
  lockstep::NameTable to;
  std::vector<std::string> adapted;
};

template <class Model>
void fine_tune(const std::shared_ptr<Model>& model, const Layout& layout,
               const FineTuningOptions& options) {
  auto world = lockstep::init_process_group();
  const auto loaded = lockstep::load_safetensors(options.tokens, {"tokens"});
  const torch::Tensor tokens = loaded.tensors.at(0).second.to(torch::kLong);
  lockstep::load_weights(*model, options.model, {.names = layout.from, .convert_types = true});

  if (options.steps > 0) {
    lockstep::Lora lora(*model, layout.adapted, {.rank = options.rank});
    lockstep::DistributedDataParallel ddp(model, world);
    lockstep::AdamW adamw(lora.parameters(), torch::optim::AdamWOptions(options.lr));
    for (std::int64_t step = 0; step < options.steps; ++step) {
      adamw.zero_grad();
      const torch::Tensor loss = loss_of(ddp, batch_of(tokens, step, options, world));
      loss.backward();
      adamw.step();
      if (world.rank() == 0)
        std::cout << "step " << step << ", loss " << loss.item<double>() << '\n';
    }
    lora.remove();  // Adds the products to the weights.
  }
  if (world.rank() == 0 && !options.logits.empty()) {
    const torch::NoGradGuard no_grad;
    model->eval();
    const torch::Tensor first = tokens.slice(0, 0, options.batch);
    lockstep::save_safetensors(options.logits, {{"logits", model->forward(first)}});
  }
  if (world.rank() == 0 && !options.out.empty()) {
    lockstep::save_weights(*model, options.out,
                           {.max_shard_bytes = options.max_shard_bytes, .names = layout.to});
    fs::copy_file(options.model / "config.json", options.out / "config.json",
                  fs::copy_options::overwrite_existing);
  }
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  const FineTuningOptions options = read_command_line(argc, argv);
  try {
    const nlohmann::json config = read_config(options.model);
    const std::string type = config.at("model_type");
    if (type == "gpt2")
      fine_tune(std::make_shared<Gpt>(gpt_options(config)),
                {.from = hugging_face_gpt2_names(),
                 .to = to_hugging_face_gpt2_names(),
                 .adapted = {"transformer.h.*.attn.c_attn"}},
                options);
    else if (type == "llama")
      fine_tune(std::make_shared<Llama>(llama_options(config)),
                {.from = {},
                 .to = {},
                 .adapted = {"model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.v_proj"}},
                options);
    else
      throw std::runtime_error("a model of type " + type + ", neither gpt2 nor llama");
  } catch (const std::exception& error) {
    std::cerr << "fine_tuning: " << error.what() << '\n';
    return 1;
  }
}
