# SPDX-License-Identifier: Apache-2.0
"""A small transformer and its data, for the examples beside it."""

import torch
from torch import nn

VOCABULARY, LENGTH, WIDTH, HEADS = 64, 32, 64, 4


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    def attention(self, x):
        # Tensor parallel ranks have some of the heads.
        query, key, value = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens, targets):
        """Returns the loss."""
        x = self.tokens(tokens) + self.positions
        return loss_of(self.head(self.blocks(x)), targets)


def sequences(count, random):
    """Returns inputs and targets: each sequence counts up by its own step."""
    begin = torch.randint(VOCABULARY, (count, 1), generator=random)
    step = torch.randint(1, 8, (count, 1), generator=random)
    tokens = (begin + step * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
