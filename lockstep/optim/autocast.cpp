// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/number_formats.h"
#include "lockstep/optim/mixed_precision.h"

namespace lockstep {
namespace {

using namespace at::autocast;

// Otherwise LibTorch uses slow loops, not oneDNN.
bool has_fast_float16() {
  static const bool is_supported = [] {
    const auto asked =
        c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_fp16_supported", ""});
    return asked && asked->typed<bool()>().call();
  }();
  return is_supported && at::globalContext().userEnabledMkldnn();
}

// "this CPU has no avx512_fp16 and no amx_fp16".
std::string why_slow() {
  const NumberFormat format = number_formats().fp16;
  std::string text;
  if (format.is_native()) {
    text = "LibTorch does not use oneDNN, although this CPU has ";
    return text += format.found.front();
  }
  for (const std::string& name : format.missing) {
    text += text.empty() ? "this CPU has no " : " and no ";
    text += name;
  }
  return text;
}

void require_fast(c10::DeviceType device, at::ScalarType dtype) {
  if (device != at::kCPU || dtype != at::kHalf || has_fast_float16()) return;
  throw Error(Fault::unsupported,
              "Autocast: float16 is emulated, which is 8 to 16 times slower than float32: " +
                  why_slow() + "; use bfloat16");
}

c10::DeviceType checked(c10::DeviceType device) {
  if (is_autocast_available(device)) return device;
  throw Error(Fault::unsupported,
              "Autocast: there is none for the device type " + c10::DeviceTypeName(device, true));
}

void require_supported(c10::DeviceType device, at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    std::string text = "Autocast: operators compute in bfloat16 or float16, not in ";
    throw Error(Fault::unsupported, text += c10::toString(dtype));
  }
  if (device == at::kCUDA && !at::hasCUDA())
    throw Error(Fault::unsupported, "Autocast: this process has no CUDA device");
  require_fast(device, dtype);
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype, bool enabled,
                   std::optional<bool> cache_enabled)
    : device_(checked(device)),
      was_enabled_(is_autocast_enabled(device)),
      dtype_before_(get_autocast_dtype(device)),
      was_cache_enabled_(is_autocast_cache_enabled()) {
  const at::ScalarType type = dtype.value_or(dtype_before_);
  if (enabled) require_supported(device, type);
  set_autocast_enabled(device, enabled);
  set_autocast_dtype(device, type);
  increment_nesting();
  set_autocast_cache_enabled(cache_enabled.value_or(was_cache_enabled_));
}

Autocast::~Autocast() {
  if (decrement_nesting() == 0) clear_cache();
  set_autocast_enabled(device_, was_enabled_);
  set_autocast_dtype(device_, dtype_before_);
  set_autocast_cache_enabled(was_cache_enabled_);
}

}  // namespace lockstep
