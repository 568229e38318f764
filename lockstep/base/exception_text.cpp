// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/exception_text.h"

#include <cxxabi.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <typeinfo>

namespace lockstep {
namespace {

constexpr std::size_t most_text = 8192;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, Free> text(abi::__cxa_demangle(name, nullptr, nullptr, &status));
  return text ? text.get() : name;
}

// backtrace_symbols() writes "program(mangled+0x12) [0x55]".
std::string readable(std::string_view frame) {
  const auto open = frame.find('(');
  const auto plus = frame.find('+', open);
  if (open == frame.npos || plus == frame.npos || plus == open + 1) return std::string(frame);
  const std::string symbol(frame.substr(open + 1, plus - open - 1));
  return std::string(frame.substr(0, open + 1)) + demangled(symbol.c_str()) +
         std::string(frame.substr(plus));
}

}  // namespace

std::string exception_text(const std::exception_ptr& error) {
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {  // Includes types that this library derives from it.
    text = demangled(typeid(Error).name()) + ": " + known.what();
  } catch (const std::exception& known) {
    text = demangled(typeid(known).name()) + ": " + known.what();
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    text = type != nullptr ? demangled(type->name()) : "an exception of another language";
  }
  if (text.size() > most_text) text.resize(most_text);
  return text;
}

bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.failure() || known.fault() == Fault::aborted;
  } catch (...) {
    return false;
  }
}

std::optional<Fault> fault_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.fault();
  } catch (...) {
    return std::nullopt;
  }
}

std::string call_stack(int skip) {
  std::array<void*, 64> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  const std::unique_ptr<char*, Free> symbols(::backtrace_symbols(frames.data(), count));
  std::string text;
  if (!symbols) return text;
  for (int i = skip + 1; i < count; ++i) text += "  " + readable(symbols.get()[i]) + '\n';
  return text;
}

}  // namespace lockstep
