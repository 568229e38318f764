// Names of published weights, for lockstep::load_weights(). ResNets and EfficientNets need none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/checkpoint/name_table.h>

// GPT-2 (gpt2, gpt2-medium, gpt2-large, gpt2-xl) in Hugging Face's form: the hub's
// model.safetensors, or the state_dict() of GPT2Model or GPT2LMHeadModel. Conv1D layers have
// transposed weights, and old files attention masks. lm_head is the token embedding.
inline lockstep::NameTable hugging_face_gpt2_names() {
  return {{.pattern = R"((transformer\.)?h\.\d+\.attn\.(bias|masked_bias))", .ignore = true},
          {.pattern = R"(lm_head\.weight)", .ignore = true},
          {.pattern = R"((?:transformer\.)?(h\.\d+\.(?:attn|mlp)\.c_\w+\.weight))",
           .replacement = "transformer.$1",
           .transpose = true},
          {.pattern = R"((?:transformer\.)?(.+))", .replacement = "transformer.$1"}};
}

// The reverse, for save_weights(): a file for GPT2LMHeadModel.from_pretrained().
inline lockstep::NameTable to_hugging_face_gpt2_names() {
  return {{.pattern = R"(.+\.c_\w+\.weight)", .transpose = true}};
}

// nanoGPT's checkpoints, converted to safetensors.
inline lockstep::NameTable nanogpt_names() {
  return {{.pattern = R"(lm_head\.weight)", .ignore = true},
          {.pattern = R"(transformer\.h\.\d+\.attn\.bias)", .ignore = true}};
}

// torchvision's vision transformers, such as vit_b_16, with torch.nn.MultiheadAttention.
inline lockstep::NameTable torchvision_vit_names() {
  return {{.pattern = R"((.+\.self_attention\.in_proj)_(weight|bias))", .replacement = "$1.$2"}};
}
