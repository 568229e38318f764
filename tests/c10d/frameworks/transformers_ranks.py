# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer uses Gloo for CPUs, or the group that the program has created."""

import os
import tempfile

import framework
import torch
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

os.environ["HF_HUB_OFFLINE"] = "1"


class Texts(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(50, (12,), generator=random)
        return {"input_ids": tokens, "labels": tokens}


def train(backend):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2,
                                       n_head=2, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(
            folder, use_cpu=True, max_steps=4, per_device_train_batch_size=4, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True, optim="sgd", learning_rate=0.1,
            eval_strategy="no", dataloader_pin_memory=False), train_dataset=Texts(),
            eval_dataset=Texts())
        trainer.train()
        judged = trainer.evaluate()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return framework.result([*losses, judged["eval_loss"]], model)


framework.run(train, "group")
