// A model as a list of functions that make layers, which a Pipeline cuts into stages.
//
//   lockstep::LayerList layers;
//   layers.add("embed", [&] { return GptEmbedding(options); });
//   for (int i = 0; i < 12; ++i)
//     layers.add("h." + std::to_string(i), [&] { return GptBlock(options); });
//   layers.add("head", [&] { return GptHead(options); });
//   layers.tie("head.weight", "embed.wte.weight");
//   layers.parallelize(mesh["tp"], {{"h.*.mlp.c_fc", lockstep::ColwiseParallel()}, ...});
//
// On every rank, parameters have the names of the whole model, such as "h.3.mlp.c_fc.weight". A
// layer's name may extend an earlier one by levels. Each rank makes all layers in order, one at a
// time, twice: for sizes, on meta if possible, and to keep its own. Weights equal those of one
// process with the same seed.
//
// Thread safety: none. Lifetime: what the functions use outlives the Pipeline's constructor.
// Errors: misuse for a name that has an empty level, or repeats or begins an earlier one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"

namespace lockstep {
namespace pipeline {

struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<PassedValue(const PassedValue&)> forward;
};

template <class Member>
struct Forward;
template <class R, class C, class... A>
struct Forward<R (C::*)(A...)> {
  using Arguments = std::tuple<std::decay_t<A>...>;
};
template <class R, class C, class... A>
struct Forward<R (C::*)(A...) const> : Forward<R (C::*)(A...)> {};

template <class Module>
Layer layer_of(std::shared_ptr<Module> module) {
  Module& it = *module;
  if constexpr (requires { &Module::forward; }) {
    using Arguments = typename Forward<decltype(&Module::forward)>::Arguments;
    return {module, [&it](const PassedValue& value) {
              if constexpr (std::tuple_size_v<Arguments> == 1) {
                return pack(it.forward(unpack<std::tuple_element_t<0, Arguments>>(value)));
              } else {
                const auto arguments = unpack<Arguments>(value);
                return std::apply([&it](const auto&... each) { return pack(it.forward(each...)); },
                                  arguments);
              }
            }};
  } else {
    return {module, [&it](const PassedValue& value) {
              return pack(it.forward(unpack<at::Tensor>(value)));
            }};
  }
}

inline Layer layer_of(Layer layer) { return layer; }

template <class Module>
Layer layer_of(const torch::nn::ModuleHolder<Module>& holder) {
  return layer_of(holder.ptr());
}

}  // namespace pipeline

class LOCKSTEP_API LayerList {
 public:
  // A layer is a module with one forward(), which takes the result of the layer before. Values are
  // tensors, numbers and texts, and tuples, pairs, vectors, arrays, maps and optionals of values.
  // A forward() with several parameters takes a tuple; a template, as torch::nn::Sequential's,
  // takes a tensor. `make` returns a std::shared_ptr, a holder of TORCH_MODULE, or the result of
  // another list's make().
  template <class Make>
  void add(std::string name, Make make) {
    add_layer(std::move(name), [make = std::move(make)]() mutable {
      const auto made = make();
      return pipeline::layer_of(made);
    });
  }

  // Makes `parameter` the same weight as `same_as`, of any layer. Gradients are added.
  // Checkpoints and gradient norms include the weight once, as `same_as`.
  // Errors: misuse for a repeated tie and, in Pipeline's constructor, for unknown parameters, and
  // different shapes, types, cuts or requires_grad().
  void tie(std::string parameter, std::string same_as);

  // As parallelize_module(). May be called several times.
  void parallelize(const ProcessGroup& group, ParallelPlan plan,
                   const ParallelizeOptions& options = {});

  std::size_t size() const { return layers_.size(); }
  const std::string& name(std::size_t layer) const { return layers_.at(layer).name; }

  // A new instance.
  pipeline::Layer make(std::size_t layer) const;

  struct Tie {
    std::string parameter, same_as;
  };
  const std::vector<Tie>& ties() const { return ties_; }

  struct Cut {
    ProcessGroup group;
    ParallelPlan plan;
    ParallelizeOptions options;
  };
  const std::vector<Cut>& cuts() const { return cuts_; }

 private:
  struct Entry {
    std::string name;
    std::function<pipeline::Layer()> make;
  };
  void add_layer(std::string name, std::function<pipeline::Layer()> make);

  std::vector<Entry> layers_;
  std::vector<Tie> ties_;
  std::vector<Cut> cuts_;
};

}  // namespace lockstep
