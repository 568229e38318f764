// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/hyperparameters.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <array>
#include <charconv>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

using torch::optim::OptimizerOptions;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// The fewest digits that tell it from every other number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::string text_of(const c10::IValue& value) {
  if (value.isDouble()) return text_of(value.toDouble());
  if (value.isTuple()) {
    std::string text;
    for (const c10::IValue& element : value.toTupleRef().elements())
      text += (text.empty() ? "(" : ", ") + text_of(element);
    return text + ")";
  }
  std::ostringstream text;
  text << value;
  return text.str();
}

void add_all(InputArchive& archive, const std::string& prefix, Facts& facts) {
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    if (value.isModule()) {  // An archive within this one.
      InputArchive inner;
      archive.read(key, inner);
      add_all(inner, prefix + key + '.', facts);
    } else {
      facts.emplace_back(prefix + key, text_of(value));
    }
  }
}

// Empty when the options do not override serialize().
std::optional<OutputArchive> archive_of(const OptimizerOptions& options) {
  try {
    OutputArchive archive;
    options.serialize(archive);
    return archive;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("has not been implemented") == std::string_view::npos)
      throw;
    return std::nullopt;
  }
}

std::string learning_rate_of(const OptimizerOptions& options) {
  try {
    return text_of(options.get_lr());
  } catch (const c10::Error&) {
    throw Error(Fault::unsupported, c10::demangle(typeid(options).name()) +
                                        " overrides neither serialize() nor get_lr(): its values "
                                        "cannot be compared between ranks");
  }
}

void add_options(const OptimizerOptions& options, const std::string& prefix, Facts& facts) {
  std::optional<OutputArchive> written = archive_of(options);
  if (!written) {
    facts.emplace_back(prefix + "lr", learning_rate_of(options));
    return;
  }
  std::string bytes;
  written->save_to([&bytes](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  add_all(archive, prefix, facts);
}

}  // namespace

Facts hyperparameters_of(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  Facts facts{{"optimizer", c10::demangle(typeid(optimizer).name())},
              {"number of param groups", std::to_string(groups.size())}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string prefix = "param group " + std::to_string(i) + ": ";
    facts.emplace_back(prefix + "number of parameters", std::to_string(groups[i].params().size()));
    add_options(groups[i].options(), prefix, facts);
  }
  return facts;
}

}  // namespace lockstep
