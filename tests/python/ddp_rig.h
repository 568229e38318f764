// Common tools of the scenarios, with the same names as in ddp_rig.py.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/lockstep.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

constexpr std::size_t steps = 20;

class Rig {
 public:
  using Inputs = std::map<std::string, torch::Tensor>;

  Rig(const lockstep::ProcessGroup& world, std::filesystem::path folder, const Inputs& inputs,
      bool overlap)
      : world_(world), folder_(std::move(folder)), inputs_(inputs), overlap_(overlap) {}

  const lockstep::ProcessGroup& world() const { return world_; }
  std::size_t rank() const { return static_cast<std::size_t>(world_.rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(world_.size()); }
  const std::filesystem::path& folder() const { return folder_; }
  const torch::Tensor& input(const std::string& name) const { return inputs_.at(name); }

  // This rank's batch of a step.
  torch::Tensor x(std::size_t step) const { return batch_of("x", step); }
  torch::Tensor y(std::size_t step) const { return batch_of("y", step); }

  // Makes several small buckets by default.
  lockstep::DistributedDataParallelOptions options() const {
    return {.bucket_cap_mb = 0.001, .overlap = overlap_};
  }

  // Rank 0 loads the given weights; the other ranks get them by DistributedDataParallel.
  template <class Net>
  std::shared_ptr<Net> load(const std::string& name, std::shared_ptr<Net> net) const {
    if (world_.rank() == 0) lockstep::load_weights(*net, folder_ / name);
    return net;
  }

  torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
    const auto loss = torch::nn::functional::cross_entropy(output, target);
    losses_.push_back(loss.detach().to(torch::kDouble));
    return loss;
  }
  torch::Tensor loss(const torch::Tensor& output, std::size_t step) {
    return loss(output, y(step));
  }

  // Records complex numbers as pairs of reals, and sparse tensors as dense ones.
  void record(const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor reals = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
    result_.emplace_back(name, reals.detach().to_dense().clone());
  }

  // Records the buckets' indices, each bucket ended by -1.
  void record_buckets(const lockstep::DataParallelBase& ddp) {
    std::vector<std::int64_t> flat;
    for (const auto& bucket : ddp.stats().buckets) {
      flat.insert(flat.end(), bucket.begin(), bucket.end());
      flat.push_back(-1);
    }
    record("buckets", torch::tensor(flat, torch::kLong));
  }

  void record_tensors(const torch::nn::Module& net, const std::string& prefix = "") {
    for (const auto& [name, tensor] : lockstep::named_tensors(net)) {
      record(prefix + name, tensor);
      if (tensor.grad().defined()) record("grad." + prefix + name, tensor.grad());
    }
  }

  template <class Net>
  void record_all(const lockstep::DistributedDataParallel<Net>& ddp) {
    record_buckets(ddp);
    record_tensors(*ddp.module());
    record_losses();
  }

  void record_losses() { record("losses", torch::stack(losses_)); }

  lockstep::NamedTensors take_result() { return std::move(result_); }

 private:
  torch::Tensor batch_of(const char* name, std::size_t step) const {
    return input(name)[static_cast<std::int64_t>(step)][world_.rank()];
  }

  const lockstep::ProcessGroup world_;
  const std::filesystem::path folder_;
  const Inputs& inputs_;
  const bool overlap_;
  std::vector<torch::Tensor> losses_;
  lockstep::NamedTensors result_;
};

// Layers with two names are listed once, as in Python's parameters().
inline std::vector<torch::Tensor> parameters_of(const torch::nn::Module& net) {
  std::vector<torch::Tensor> distinct;
  std::set<const void*> seen;
  for (const torch::Tensor& parameter : net.parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) distinct.push_back(parameter);
  return distinct;
}

inline torch::optim::SGD sgd(const torch::nn::Module& net, double weight_decay = 0) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(weight_decay);
  return torch::optim::SGD(parameters_of(net), options);
}
