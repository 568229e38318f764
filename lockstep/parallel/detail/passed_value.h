// Values that layers pass to each other (LayerList::add()), nested to any depth. They are sent as
// tensors and a text with their structure. Public only because layers' types are template
// arguments.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/parallel/detail/forward_outputs.h"

namespace lockstep {
namespace pipeline {

struct PassedValue {
  std::vector<at::Tensor> tensors;  // All are defined.
  std::string structure;            // Such as "tuple(tensor,some(tensor))".
};

template <class T>
concept MapValue = requires(T& t) {
  typename T::mapped_type;
  t.begin();
};
template <class T>
concept ListValue =
    requires(T& t) { t.begin(); } && !MapValue<T> && !std::is_same_v<T, std::string>;

class LOCKSTEP_API ValueWriter {
 public:
  template <class T>
  void write(const T& value) {
    if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
      write_tensor(value);
    } else if constexpr (outputs::is_optional<T>) {
      if (!value) return put("nothing");
      put("some(");
      write(*value);
      put(")");
    } else if constexpr (std::is_same_v<T, std::string>) {
      write_text(value);
    } else if constexpr (std::is_arithmetic_v<T>) {
      // Integers stay integers: a double cannot represent all of them.
      if constexpr (std::is_floating_point_v<T>)
        write_number(static_cast<double>(value));
      else if constexpr (std::is_signed_v<T>)
        write_number(static_cast<std::int64_t>(value));
      else
        write_number(static_cast<std::uint64_t>(value));
    } else if constexpr (MapValue<T>) {
      begin("map", value.size());
      for (const auto& [key, mapped] : value) {
        write(key);
        put("=");
        write(mapped);
        put(",");
      }
      put(")");
    } else if constexpr (ListValue<T>) {
      begin("list", value.size());
      for (const auto& element : value) {
        write(element);
        put(",");
      }
      put(")");
    } else {
      static_assert(outputs::TupleLike<T>, "layers of a pipeline cannot pass values of this type");
      put("tuple(");
      std::apply([&](const auto&... parts) { ((write(parts), put(",")), ...); }, value);
      put(")");
    }
  }

  PassedValue take() && { return std::move(value_); }

 private:
  void put(std::string_view text) { value_.structure += text; }
  void begin(std::string_view kind, std::size_t size);
  void write_tensor(const at::Tensor& tensor);
  void write_text(std::string_view text);
  void write_number(double number);
  void write_number(std::int64_t number);
  void write_number(std::uint64_t number);

  PassedValue value_;
};

// Converts a PassedValue back. Errors: misuse, with both structures, for another form.
class LOCKSTEP_API ValueReader {
 public:
  // `value` outlives this object.
  explicit ValueReader(const PassedValue& value) : value_(value), rest_(value.structure) {}

  template <class T>
  T read() {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return read_tensor();
    } else if constexpr (outputs::is_optional<T>) {
      if (accept("nothing")) return std::nullopt;
      expect("some(");
      T value = read<typename T::value_type>();
      expect(")");
      return value;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return read_text();
    } else if constexpr (std::is_arithmetic_v<T>) {
      return std::visit([](auto number) { return static_cast<T>(number); }, read_number());
    } else if constexpr (MapValue<T>) {
      T value;
      for (std::size_t left = begin("map"); left > 0; --left) {
        auto key = read<typename T::key_type>();
        expect("=");
        value.emplace(std::move(key), read<typename T::mapped_type>());
        expect(",");
      }
      expect(")");
      return value;
    } else if constexpr (ListValue<T>) {
      T value{};
      std::size_t size = begin("list");
      if constexpr (requires { value.push_back(*value.begin()); }) {
        for (; size > 0; --size) {
          value.push_back(read<typename T::value_type>());
          expect(",");
        }
      } else {
        if (size != value.size()) fail("another number of elements");
        for (auto& element : value) {
          element = read<typename T::value_type>();
          expect(",");
        }
      }
      expect(")");
      return value;
    } else {
      static_assert(outputs::TupleLike<T>, "layers of a pipeline cannot pass values of this type");
      expect("tuple(");
      T value = read_tuple<T>(std::make_index_sequence<std::tuple_size_v<T>>());
      expect(")");
      return value;
    }
  }

  void expect_end() const;

 private:
  template <class T, std::size_t... I>
  T read_tuple(std::index_sequence<I...>) {
    return T{read_part<std::tuple_element_t<I, T>>()...};  // In this order.
  }
  template <class T>
  T read_part() {
    T part = read<T>();
    expect(",");
    return part;
  }

  bool accept(std::string_view text);
  void expect(std::string_view text);
  std::size_t begin(std::string_view kind);
  at::Tensor read_tensor();
  std::string read_text();
  std::variant<std::int64_t, std::uint64_t, double> read_number();
  [[noreturn]] void fail(std::string_view expected) const;

  const PassedValue& value_;
  std::string_view rest_;
  std::size_t next_ = 0;  // In value_.tensors.
};

template <class T>
PassedValue pack(const T& value) {
  if constexpr (std::is_same_v<T, PassedValue>) {
    return value;
  } else {
    ValueWriter writer;
    writer.write(value);
    return std::move(writer).take();
  }
}

template <class T>
T unpack(const PassedValue& value) {
  if constexpr (std::is_same_v<T, PassedValue>) {
    return value;
  } else {
    ValueReader reader(value);
    T result = reader.read<T>();
    reader.expect_end();
    return result;
  }
}

// For messages, such as "tuple(tensor,tensor)".
LOCKSTEP_API std::string in_words(std::string_view structure);

// For forward_outputs.h.
template <class Visit>
void for_each_tensor(const PassedValue& value, Visit& visit) {
  for (const at::Tensor& tensor : value.tensors) visit(tensor);
}

}  // namespace pipeline
}  // namespace lockstep
