// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/on_meta.h"

#include "lockstep/tensor/operator_interception.h"

namespace lockstep {

OnMeta::OnMeta()
    : interception_(std::make_unique<tensor::OperatorInterception>(&tensor::call_on_meta)) {}

OnMeta::~OnMeta() = default;

}  // namespace lockstep
