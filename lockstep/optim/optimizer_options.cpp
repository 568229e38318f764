// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_options.h"

#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using c10::IValue;
using torch::optim::OptimizerOptions;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using ArchivedValues = std::vector<std::pair<std::string, IValue>>;

// Whether the options override `call`'s member.
template <class Call>
bool is_implemented(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    for (const char* const refusal : {"has not been implemented", "has not been overridden"})
      if (text.find(refusal) != std::string_view::npos) return false;
    throw;
  }
  return true;
}

// Archives are readable only after serialisation to bytes.
InputArchive readable(OutputArchive& written) {
  std::string bytes;
  written.save_to([&bytes](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  return archive;
}

std::optional<InputArchive> archive_of(const OptimizerOptions& options) {
  OutputArchive archive;
  if (!is_implemented([&] { options.serialize(archive); })) return std::nullopt;
  return readable(archive);
}

void add_all(InputArchive& archive, const std::string& prefix, ArchivedValues& values) {
  for (const std::string& key : archive.keys()) {
    IValue value;
    archive.read(key, value);
    if (value.isModule()) {  // A nested archive.
      InputArchive inner;
      archive.read(key, inner);
      add_all(inner, prefix + key + '.', values);
    } else {
      values.emplace_back(prefix + key, std::move(value));
    }
  }
}

double learning_rate_of(const OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    throw Error(Fault::unsupported,
                c10::demangle(typeid(options).name()) +
                    " overrides neither serialize() nor get_lr(): its values are not known");
  }
}

bool is_tuple_of_doubles(const IValue& value) {
  if (!value.isTuple()) return false;
  const auto& elements = value.toTupleRef().elements();
  return std::all_of(elements.begin(), elements.end(),
                     [](const IValue& element) { return element.isDouble(); });
}

std::optional<StateValue> state_value_of(const IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (!is_tuple_of_doubles(value)) return std::nullopt;
  std::vector<double> numbers;
  for (const IValue& element : value.toTupleRef().elements()) numbers.push_back(element.toDouble());
  return numbers;
}

IValue ivalue_of(const StateValue& value) {
  return std::visit(
      []<class T>(const T& plain) {
        if constexpr (std::is_same_v<T, std::vector<double>>) {
          std::vector<IValue> elements(plain.begin(), plain.end());
          return IValue(c10::ivalue::Tuple::create(std::move(elements)));
        } else {
          return IValue(plain);
        }
      },
      value);
}

bool are_alike(const StateValue& a, const StateValue& b) {
  if (a.index() != b.index()) return false;
  const auto* numbers = std::get_if<std::vector<double>>(&a);
  return numbers == nullptr || numbers->size() == std::get<std::vector<double>>(b).size();
}

StateValue require_plain(const OptimizerOptions& options, const std::string& name,
                         const IValue& value) {
  std::optional<StateValue> plain = state_value_of(value);
  if (!plain)
    throw Error(Fault::unsupported, "option " + name + " of " +
                                        c10::demangle(typeid(options).name()) + " is a " +
                                        value.tagKind() + ", not a number, truth value or text");
  return *std::move(plain);
}

void write_all(InputArchive& present, const std::string& prefix, const StateValues& values,
               OutputArchive& archive) {
  for (const std::string& key : present.keys()) {
    IValue value;
    present.read(key, value);
    if (value.isModule()) {
      InputArchive inner;
      present.read(key, inner);
      OutputArchive written(archive.compilation_unit());
      write_all(inner, prefix + key + '.', values, written);
      archive.write(key, written);
    } else {
      const auto found = values.find(prefix + key);
      archive.write(key, found == values.end() ? value : ivalue_of(found->second));
    }
  }
}

bool set_all(OptimizerOptions& options, InputArchive& present, const StateValues& values) {
  OutputArchive archive;
  write_all(present, "", values, archive);
  InputArchive read = readable(archive);
  return is_implemented([&] { options.serialize(read); });
}

// The shortest text that identifies `number`.
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

}  // namespace

ArchivedValues archived_values(const OptimizerOptions& options) {
  ArchivedValues values;
  if (std::optional<InputArchive> archive = archive_of(options))
    add_all(*archive, "", values);
  else
    values.emplace_back("lr", learning_rate_of(options));
  return values;
}

StateValues state_values_of(const OptimizerOptions& options) {
  StateValues values;
  for (const auto& [name, value] : archived_values(options))
    if (!value.isNone()) values.emplace(name, require_plain(options, name, value));
  return values;
}

std::vector<std::string> mismatches_of(const OptimizerOptions& options, const StateValues& values) {
  std::vector<std::string> mismatches;
  StateValues rest = values;
  for (const auto& [name, value] : archived_values(options)) {
    const auto saved = rest.extract(name);
    if (value.isNone()) continue;
    if (saved.empty())
      mismatches.push_back("option " + name + " was not saved");
    else if (!are_alike(saved.mapped(), require_plain(options, name, value)))
      mismatches.push_back("option " + name + " was saved with another type");
  }
  for (const auto& [name, value] : rest)
    mismatches.push_back("option " + name + " was saved and does not exist here");
  return mismatches;
}

void set_state_values(OptimizerOptions& options, const StateValues& values) {
  const std::vector<std::string> mismatches = mismatches_of(options, values);
  require(mismatches.empty(), [&] { return "options of a param group: " + mismatches.front(); });
  std::optional<InputArchive> present = archive_of(options);
  const bool can_be_set =
      present ? set_all(options, *present, values)
              : is_implemented([&] { options.set_lr(std::get<double>(values.at("lr"))); });
  if (!can_be_set)
    throw Error(Fault::unsupported,
                c10::demangle(typeid(options).name()) +
                    " can be read but not set: override serialize(InputArchive&) or "
                    "set_lr()");
}

Facts hyperparameters_of(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  Facts facts{{"optimizer", c10::demangle(typeid(optimizer).name())},
              {"number of param groups", std::to_string(groups.size())}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string prefix = "param group " + std::to_string(i) + ": ";
    facts.emplace_back(prefix + "number of parameters", std::to_string(groups[i].params().size()));
    for (const auto& [name, value] : archived_values(groups[i].options()))
      facts.emplace_back(prefix + name, text_of(value));
  }
  return facts;
}

}  // namespace lockstep
