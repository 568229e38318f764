// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/own_parameters.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::prune {

void require_own_parameters(const torch::nn::Module& model, std::string_view call,
                            std::string_view if_shared, std::string_view if_cut) {
  const auto text = [call](const std::string& name, std::string_view what, std::string_view why) {
    return std::string(call).append(": parameter ").append(name).append(what).append(why);
  };
  require_values(named_tensors(model), call);
  for (const auto& [name, parameter] : named_parameters(model))
    require(!lies_in_shared_block(parameter),
            [&, &name = name] { return text(name, " is shared by all ranks", if_shared); });
  if (const Layouts layouts = layouts_of(model); !layouts.empty())
    throw Error(Fault::unsupported, text(layouts.begin()->first, " is cut over ranks", if_cut));
}

}  // namespace lockstep::prune
