// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/script_module.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

torch::jit::Module not_empty(torch::jit::Module script) {
  bool is_empty = false;
  try {
    script.type();
  } catch (const c10::Error&) {  // The only test for a missing object.
    is_empty = true;
  }
  require(!is_empty, "ScriptModule: the torch::jit::Module is empty: load or define it first");
  return script;
}

}  // namespace

ScriptModule::ScriptModule(torch::jit::Module script)
    : torch::nn::Module("ScriptModule"), script_(not_empty(std::move(script))) {
  mirror(*this, script_, "");
}

void ScriptModule::mirror(torch::nn::Module& to, const torch::jit::Module& from,
                          const std::string& prefix) {
  to.torch::nn::Module::train(from.is_training());
  const auto keep = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    slots_.push_back({from, from.type()->getAttributeSlot(name), prefix + name, tensor, is_buffer});
  };
  for (const auto& item : from.named_parameters(/*recurse=*/false)) {
    to.register_parameter(item.name, item.value, item.value.requires_grad());
    keep(item.name, item.value, /*is_buffer=*/false);
  }
  for (const auto& item : from.named_buffers(/*recurse=*/false)) {
    to.register_buffer(item.name, item.value);
    keep(item.name, item.value, /*is_buffer=*/true);
  }
  for (const auto& item : from.named_children())
    mirror(*to.register_module(item.name, std::make_shared<torch::nn::Module>(item.name)),
           item.value, prefix + item.name + '.');
}

c10::IValue ScriptModule::forward(std::vector<c10::IValue> inputs,
                                  const torch::jit::Kwargs& named_inputs) {
  adopt_assigned_buffers();
  c10::IValue result = script_.forward(std::move(inputs), named_inputs);
  adopt_assigned_buffers();
  return result;
}

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
}

bool ScriptModule::is_training() const noexcept { return script_.is_training(); }

void ScriptModule::adopt_assigned_buffers() const {
  for (const Slot& slot : slots_) {
    const c10::IValue value = slot.owner._ivalue()->getSlot(slot.index);
    require(value.isTensor(),
            [&] { return "ScriptModule: " + slot.name + " of the script is no tensor any more"; });
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_same(slot.tensor)) continue;
    require(slot.is_buffer, [&] {
      return "ScriptModule: another tensor was assigned to parameter " + slot.name +
             " of the script, and its gradients would not be seen: assign its values with copy_()";
    });
    require(tensor.options().type_equal(slot.tensor.options()), [&] {
      return "ScriptModule: a tensor of another type or device was assigned to buffer " +
             slot.name + " of the script";
    });
    const at::NoGradGuard no_grad;
    slot.tensor.set_data(tensor.detach());
    slot.owner._ivalue()->setSlot(slot.index, slot.tensor);
  }
}

std::vector<std::string> ScriptModule::batch_norms() const {
  std::vector<std::string> names;
  for (const auto& item : script_.named_modules())
    if (item.value.type()->name()->name().find("BatchNorm") != std::string::npos)
      names.push_back(item.name);
  return names;
}

}  // namespace lockstep
