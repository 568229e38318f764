// An LSTM that predicts the next word of five texts, reads them piece by piece with the state that
// it had at the end of the last piece, and reports its perplexity.

// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cmath>
#include <iostream>
#include <tuple>

using State = std::tuple<torch::Tensor, torch::Tensor>;

struct LanguageModel : torch::nn::Module {
  torch::nn::Embedding words{register_module("words", torch::nn::Embedding(20, 16))};
  torch::nn::LSTM lstm{
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(16, 24).batch_first(true)))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(24, 20))};

  std::tuple<torch::Tensor, State> forward(const torch::Tensor& x, const State& state) {
    auto [hidden, next] = lstm(words(x), state);
    return {out(hidden), next};
  }
};

int main() {
  torch::manual_seed(1);
  // Text i counts in steps of i + 1.
  torch::Tensor texts = torch::arange(1, 6).unsqueeze(1) * torch::arange(61) % 20;

  auto model = std::make_shared<LanguageModel>();
  torch::optim::SGD sgd(model->parameters(), 1.0);
  for (int epoch = 0; epoch < 5; ++epoch) {
    State state{torch::zeros({1, texts.size(0), 24}), torch::zeros({1, texts.size(0), 24})};
    double total = 0, words = 0;
    for (std::int64_t begin = 0; begin < 60; begin += 15) {
      const torch::Tensor x = texts.slice(1, begin, begin + 15);
      const torch::Tensor next_words = texts.slice(1, begin + 1, begin + 16).flatten();
      sgd.zero_grad();
      const auto [scores, next] = model->forward(x, state);
      state = {std::get<0>(next).detach(), std::get<1>(next).detach()};
      const torch::Tensor loss = torch::cross_entropy_loss(scores.flatten(0, 1), next_words);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
      sgd.step();
      total += loss.item<double>() * static_cast<double>(next_words.numel());
      words += static_cast<double>(next_words.numel());
    }
    std::cout << "epoch " << epoch << ": perplexity " << std::exp(total / words) << std::endl;
  }
  torch::save(model, "language_model.pt");
  return 0;
}
