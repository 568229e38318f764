# SPDX-License-Identifier: Apache-2.0
"""Counterparts of examples/models/ for train_pytorch.py, with the layers and names of torchvision
and nanoGPT, neither of which is needed here. Weights can therefore be exchanged."""

import math

import torch
from torch import nn
from torch.nn import functional


def cnn(channels=3, size=32, classes=10):
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (size // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, classes))


# --- ResNet-18 ----------------------------------------------------------------------------------

class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        downsample = None
        if stride != 1 or inputs != outputs:  # Before the others, as in torchvision.
            downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                       nn.BatchNorm2d(outputs))
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [(64, 64), (64, 128), (128, 256), (256, 512)]
        for number, (inputs, outputs) in enumerate(widths, 1):
            stride = 1 if inputs == outputs else 2
            self.add_module(f"layer{number}", nn.Sequential(
                BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


# --- EfficientNet-B0 ----------------------------------------------------------------------------

# By stage: expansion, kernel, stride, channels in and out, blocks.
STAGES = [(1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3),
          (6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1)]


def convolution(inputs, outputs, kernel, stride=1, groups=1, activated=True):
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups,
                        bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.SiLU(inplace=True)] if activated else []))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        means = functional.adaptive_avg_pool2d(x, 1)
        return torch.sigmoid(self.fc2(functional.silu(self.fc1(means), inplace=True))) * x


class MBConv(nn.Module):
    def __init__(self, expand, kernel, stride, inputs, outputs, drop):
        super().__init__()
        self.residual, self.drop = stride == 1 and inputs == outputs, drop
        inside = inputs * expand
        layers = [convolution(inputs, inside, 1)] if inside != inputs else []
        layers += [convolution(inside, inside, kernel, stride, groups=inside),
                   SqueezeExcitation(inside, max(1, inputs // 4)),
                   convolution(inside, outputs, 1, activated=False)]
        self.block = nn.Sequential(*layers)

    def forward(self, x):
        y = self.block(x)
        if not self.residual:
            return y
        if self.training and self.drop > 0:
            kept = 1 - self.drop
            y = y * y.new_empty(y.size(0), 1, 1, 1).bernoulli_(kept).div_(kept)
        y += x
        return y


class EfficientNetB0(nn.Module):
    def __init__(self, classes=1000, dropout=0.2, stochastic_depth=0.2):
        super().__init__()
        blocks, index = sum(stage[-1] for stage in STAGES), 0
        layers = [convolution(3, 32, 3, 2)]
        for expand, kernel, stride, inputs, outputs, count in STAGES:
            stage = []
            for number in range(count):
                stage.append(MBConv(expand, kernel, stride if number == 0 else 1,
                                    inputs if number == 0 else outputs, outputs,
                                    stochastic_depth * index / blocks))
                index += 1
            layers.append(nn.Sequential(*stage))
        self.features = nn.Sequential(*layers, convolution(320, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout, inplace=True), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.out_features)
                nn.init.uniform_(module.weight, -bound, bound)
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.classifier(functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


# --- GPT ----------------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in self.c_attn(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT without dropout; the output's weights are those of the token embedding."""

    def __init__(self, vocabulary, block_size, layers, heads, width):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(block_size, width),
            "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width)})
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                scale = math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 1
                nn.init.normal_(parameter, 0, 0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.size(1)))
        for block in parts["h"]:
            x = block(x)
        return functional.linear(parts["ln_f"](x), parts["wte"].weight)


# --- Workloads ----------------------------------------------------------------------------------

def images(net, size, classes, batch):
    return net, torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))


def gpt(batch):
    vocabulary, block_size = 8192, 128
    tokens = torch.randint(vocabulary, (batch, block_size + 1))
    net = Gpt(vocabulary, block_size, layers=6, heads=6, width=384)
    return net, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


# By name: a function that makes model, inputs and targets for a batch size; as in workload.cpp.
WORKLOADS = {
    "cnn": lambda batch: images(cnn(), 32, 10, batch),
    "resnet18": lambda batch: images(ResNet18(100), 64, 100, batch),
    "efficientnet_b0": lambda batch: images(EfficientNetB0(100), 64, 100, batch),
    "gpt": gpt,
}
