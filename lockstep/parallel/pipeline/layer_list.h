// A model as a list of layers and functions that make them. A Pipeline cuts the list into stages.
//
//   lockstep::LayerList layers;
//   layers.add("embed", [&] { return GptEmbedding(options); });
//   for (int i = 0; i < 12; ++i)
//     layers.add("h." + std::to_string(i), [&] { return GptBlock(options); });
//   layers.add("head", [&] { return GptHead(options); });
//   layers.tie("head.weight", "embed.wte.weight");        // One weight in two layers.
//   layers.parallelize(mesh["tp"], {{"h.*.mlp.c_fc", lockstep::ColwiseParallel()}, ...});
//
// On every rank, parameters have the names of the whole model, such as "h.3.mlp.c_fc.weight". A
// layer's name may lie within that of an earlier one. Each rank makes all layers in order, one at a
// time, twice: to determine sizes, and to keep its own. Weights equal those of one process with the
// same seed.
//
// Thread safety: none. Lifetime: objects that the functions use outlive the Pipeline's constructor.
// Errors: misuse for names that are empty or exist already.

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

// A layer of any type.
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
  // tensors, or tuples, pairs, vectors, arrays, maps and optionals of tensors, numbers and texts. A
  // forward() with several parameters takes a tuple. If it is a template, as
  // torch::nn::Sequential's, it takes and returns a tensor. `make` returns a std::shared_ptr of a
  // module, a holder of TORCH_MODULE, or the result of another list's make().
  template <class Make>
  void add(std::string name, Make make) {
    add_layer(std::move(name), [make = std::move(make)]() mutable {
      const auto made = make();
      return pipeline::layer_of(made);
    });
  }

  // Makes `parameter` the same weight as `same_as`, of an earlier or later layer. Gradients are
  // added. The weight is saved, clipped and counted once, as `same_as`.
  // Errors, in Pipeline's constructor: misuse for a parameter that does not exist, for different
  // shapes, and for plans of parallelize() that cut them differently.
  void tie(std::string parameter, std::string same_as);

  // Cuts layers over `group`, as parallelize_module() does. May be called several times.
  void parallelize(const ProcessGroup& group, ParallelPlan plan,
                   const ParallelizeOptions& options = {});

  std::size_t size() const { return layers_.size(); }
  const std::string& name(std::size_t layer) const { return layers_.at(layer).name; }

  // Makes a new instance of one layer.
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
