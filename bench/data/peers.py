# SPDX-License-Identifier: Apache-2.0
"""Python's sides of bench/data: ways to read samples, each timed by itself. Prints a JSON object
with the cost of one of them."""

import argparse
import json
import pathlib
import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

SAMPLES = 20000
TIMED_PASSES = 3


def cpu_us(samples, run_pass):
    """Returns the microseconds of CPU time that this process takes for each sample of a pass. The
    first pass is not timed."""
    run_pass()
    begin = time.process_time()
    for _ in range(TIMED_PASSES):
        run_pass()
    return (time.process_time() - begin) * 1e6 / (TIMED_PASSES * samples)


def read_all(loader):
    for data, _ in loader:
        data.view(-1)[0].item()


def images():
    return (torch.randint(256, (SAMPLES, 1, 28, 28), dtype=torch.uint8),
            torch.randint(10, (SAMPLES,)))


def in_memory_by_tensor_dataset(options):
    """The images are converted in advance, in four times the memory."""
    data, target = images()
    loader = DataLoader(TensorDataset(data.float().div(255), target),
                        batch_size=options.batch_size, shuffle=True)
    return cpu_us(SAMPLES, lambda: read_all(loader))


class ToTensorOfImages(Dataset):
    """torchvision's MNIST with ToTensor(): a PIL image per sample."""

    def __init__(self):
        from PIL import Image
        import_torchvision()
        from torchvision.transforms import ToTensor
        self.data, self.target = images()
        self.open, self.to_tensor = Image.fromarray, ToTensor()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        image = self.open(self.data[index, 0].numpy())
        return self.to_tensor(image), int(self.target[index])


def in_memory_by_torchvision(options):
    loader = DataLoader(ToTensorOfImages(), batch_size=options.batch_size, shuffle=True)
    return cpu_us(SAMPLES, lambda: read_all(loader))


def tokens_by_nanogpt(options):
    """get_batch() of nanoGPT's train.py, on the CPU."""
    import numpy
    length, batches = 1024, 200

    def get_batch():
        # Created for each batch to avoid a memory leak, as nanoGPT's comment explains.
        data = numpy.memmap(options.data, dtype=numpy.uint16, mode="r")
        ix = torch.randint(len(data) - length, (options.batch_size,))
        x = torch.stack([torch.from_numpy(data[i:i + length].astype(numpy.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + length].astype(numpy.int64))
                         for i in ix])
        return x, y

    return cpu_us(batches, lambda: [get_batch() for _ in range(batches)])


def import_torchvision():
    """Imports torchvision. Its operators on PyPI are CUDA's and cannot be loaded with a torch for
    CPUs; folders and transforms of PIL images need none of them."""
    register = torch.library.register_fake

    def register_without_operators(*arguments, **options):
        def decorate(function):
            try:
                return register(*arguments, **options)(function)
            except RuntimeError:
                return function
        return decorate

    torch.library.register_fake = register_without_operators
    import torchvision
    return torchvision


def image_loader(options):
    from torchvision import datasets, transforms
    chain = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    return DataLoader(datasets.ImageFolder(options.data, chain), batch_size=options.batch_size,
                      shuffle=True)


def images_by_torchvision(options):
    import_torchvision()
    loader = image_loader(options)
    return cpu_us(len(loader.dataset), lambda: read_all(loader))


def first_batch_by_torchvision(options):
    import_torchvision()
    loader = image_loader(options)
    begin = time.perf_counter()
    next(iter(loader))
    return (time.perf_counter() - begin) * 1e3


def write_images(options):
    """Writes 200 JPEGs of 500 x 375 pixels in four classes: gradients, edges and noise, like
    photographs."""
    from PIL import Image
    for number in range(200):
        values = torch.rand(3, 12, 16, generator=torch.Generator().manual_seed(number))
        picture = torch.nn.functional.interpolate(values[None], (375, 500), mode="bicubic")[0]
        picture = (picture + 0.06 * torch.randn(3, 375, 500)).clamp(0, 1).mul(255)
        folder = pathlib.Path(options.data) / f"class-{number % 4}"
        folder.mkdir(exist_ok=True)
        pixels = picture.permute(1, 2, 0).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)


SIDES = {"images-torchvision": images_by_torchvision,
         "first-batch-torchvision": first_batch_by_torchvision,
         "in-memory-tensor-dataset": in_memory_by_tensor_dataset,
         "in-memory-torchvision": in_memory_by_torchvision,
         "tokens-nanogpt": tokens_by_nanogpt}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=[*SIDES, "write-images"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side == "write-images":
        write_images(options)
    else:
        print(json.dumps({"cost": SIDES[options.side](options)}))


if __name__ == "__main__":
    main()
