#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lockstep::ImageFolder lists, decodes and transforms images as torchvision does with Pillow."""

import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from torchvision_or_skip import datasets, transforms

import numpy
import PIL.Image

PROGRAM = sys.argv.pop(1)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGE = 700  # More than any side of an image here.
FEW = ((150, 110), (64, 64))  # Sizes of images that are transformed many times.
RARE = 1e-6  # The share of resized values that are 2 off instead of 1.


def picture(width, height, seed=0):
    """Slopes, edges and noise, as floats from 0 to 255 [height, width, 3]."""
    noise = numpy.random.RandomState(seed)
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    planes = [128 + 80 * numpy.sin(x / (9 + c) + seed) + 60 * numpy.cos(y / (7 - c)) for c in
              range(3)]
    values = numpy.stack(planes, axis=2)
    values[(x // 40 + y // 40) % 3 == 0] += 70
    values += noise.uniform(-25, 25, values.shape) * ((x // 60) % 2)[:, :, None]
    return numpy.clip(values, 0, 255).astype(numpy.uint8)


def png(width, height, depth, color_type, rows, chunks=()):
    """A PNG file of rows as they are in the file."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I",
                                                                        zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*each) for each in [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")])


def write_pngs(folder):
    """All colour types and depths, from random bytes; palettes are shorter than their indices."""
    noise = numpy.random.RandomState(3)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    for color_type, count in channels.items():
        for depth in depths[color_type]:
            rows = [noise.bytes((51 * count * depth + 7) // 8) for _ in range(23)]
            palette = [(b"PLTE", noise.bytes(3 * max(1, 2**depth - 1)))] if color_type == 3 else []
            hole = [(b"tRNS", b"\0\1")] if color_type in (0, 3) else []
            for name, extra in (("", []), ("-hole", hole)):
                (folder / f"{color_type}-{depth}{name}.png").write_bytes(
                    png(51, 23, depth, color_type, rows, palette + extra))
    PIL.Image.fromarray(picture(90, 70)).save(folder / "pillow.png")


def write_jpegs(folder, sizes=((500, 375), (333, 517), (64, 64), (17, 9), (1, 1))):
    for number, (width, height) in enumerate(sizes):
        image = PIL.Image.fromarray(picture(width, height, number))
        for sampling in (0, 1, 2):
            for progressive in (False, True):
                image.save(folder / f"{number}-{sampling}-{progressive}.jpg", quality=93,
                           subsampling=sampling, progressive=progressive)
        image.convert("L").save(folder / f"{number}-grey.jpg")
        image.convert("CMYK").save(folder / f"{number}-cmyk.jpg")


class Images(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.folder = self.root / "class"
        self.folder.mkdir()

    def ours(self, *arguments, root=None):
        task, *steps = arguments
        return subprocess.run([PROGRAM, task, root or self.root, *steps], check=True,
                              capture_output=True).stdout

    def filled(self, size, *steps):
        return numpy.frombuffer(self.ours("fill", *steps), "f4").reshape(-1, 3, *size)

    def theirs(self, *steps):
        """Rows of torchvision's floats, of the same folder."""
        chain = transforms.Compose([*steps, transforms.ToTensor()])
        return numpy.stack([chain(image).numpy() for image, _ in
                            datasets.ImageFolder(self.root)])

    def compare(self, ours, theirs, most=0):
        """Floats of bytes, at most so many 255ths apart. Returns the share of other values."""
        self.assertEqual(ours.shape, theirs.shape)
        distance = numpy.abs(numpy.rint(ours * 255) - numpy.rint(theirs * 255))
        if most == 0:
            numpy.testing.assert_array_equal(ours, theirs)
        self.assertLessEqual((distance > most).mean(), RARE)
        self.assertLessEqual(distance.max(), most + (most > 0))
        return (distance > 0).mean()

    def test_files_are_listed_in_torchvisions_order(self):
        random.seed(5)
        shutil.rmtree(self.folder)
        pixel = png(1, 1, 8, 0, [b"\x80"])
        byte_names = [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
        names = byte_names + [b"a" + name for name in byte_names] + [
            b"\xc3\xa9", b"\xef\xbf\xbd", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"...",
            b"1.x", b"10", b"2", b"B", b"a-b"]
        for class_name in (b"\xff", b"b", b"B", b"a", b"\xef\xbf\xbd", b"a\n"):
            for folder in (b"", b"a/", b"a-b/", b"a/b/", b"\xff/", b"\xef\xbf\xbd/"):
                path = os.fsencode(self.root) + b"/" + class_name + b"/" + folder
                os.makedirs(path, exist_ok=True)
                for name in random.sample(names, 60):
                    extension = random.choice([b".png", b".JPG", b".Jpeg", b".webp", b".txt", b""])
                    with open(path + name + extension, "wb") as file:
                        file.write(pixel)
        os.symlink("../b/a", self.root / "a" / "linked")
        os.symlink("b", self.root / "second b")
        expected = datasets.ImageFolder(self.root)
        listed = self.ours("list").split(b"\0")[:-1]
        self.assertGreater(len(listed), 1000)
        self.assertEqual([b"%d " % label + os.fsencode(path) for path, label in expected.samples],
                         listed)

    def test_jpeg_is_decoded_to_pillows_pixels(self):
        write_jpegs(self.folder)
        self.compare(self.filled((LARGE, LARGE), f"CenterCrop:{LARGE}:{LARGE}"),
                     self.theirs(transforms.CenterCrop(LARGE)))
        self.compare(self.filled((33, 21), "CenterCrop:33:21"),
                     self.theirs(transforms.CenterCrop((33, 21))))

    def test_png_is_decoded_to_pillows_pixels(self):
        write_pngs(self.folder)
        self.compare(self.filled((LARGE, LARGE), f"CenterCrop:{LARGE}:{LARGE}"),
                     self.theirs(transforms.CenterCrop(LARGE)))

    def test_webp_is_decoded_to_pillows_pixels(self):
        for number, (width, height) in enumerate(((333, 517), (64, 64), (17, 9), (1, 1))):
            image = PIL.Image.fromarray(picture(width, height, number))
            image.save(self.folder / f"{number}-lossy.webp", quality=90)
            image.save(self.folder / f"{number}-lossless.webp", lossless=True)
            image.putalpha(image.convert("L"))
            image.save(self.folder / f"{number}-alpha.webp", quality=90)
        self.compare(self.filled((LARGE, LARGE), f"CenterCrop:{LARGE}:{LARGE}"),
                     self.theirs(transforms.CenterCrop(LARGE)))
        self.compare(self.filled((33, 21), "CenterCrop:33:21"),
                     self.theirs(transforms.CenterCrop((33, 21))))

    def test_resize_is_1_off_at_most_except_for_one_value_in_a_million(self):
        write_jpegs(self.folder)
        write_pngs(self.folder)
        for side in (255, 64, 7):
            crop = (200, 200)
            share = self.compare(
                self.filled(crop, f"Resize:{side}", "CenterCrop:200:200"),
                self.theirs(transforms.Resize(side), transforms.CenterCrop(crop)), most=1)
            self.assertLess(share, 0.1)
        self.compare(self.filled((40, 90), "ResizeTo:40:90"),
                     self.theirs(transforms.Resize((40, 90))), most=1)
        self.compare(self.filled((70, 70), "ResizeAtMost:50:60", "CenterCrop:70:70"),
                     self.theirs(transforms.Resize(50, max_size=60), transforms.CenterCrop(70)),
                     most=1)

    def test_a_crop_whose_ratio_is_impossible_is_the_middle(self):
        write_jpegs(self.folder)
        for tiny in self.folder.glob("4-*"):  # Of one pixel: torchvision crops it to none.
            tiny.unlink()
        for scale, ratio in (((1, 1), (0.1, 0.2)), ((1, 1), (5, 6))):
            self.compare(
                self.filled((100, 100), f"RandomResizedCrop:100:{scale[0]}:{scale[1]}:{ratio[0]}:"
                                        f"{ratio[1]}"),
                self.theirs(transforms.RandomResizedCrop(100, scale, ratio)), most=1)

    def test_the_chain_for_evaluation_is_2_255ths_of_a_deviation_off(self):
        write_jpegs(self.folder)
        ours = self.filled((224, 224), "Resize:256", "CenterCrop:224:224", "Normalize")
        normalize = transforms.Normalize(MEAN, DEVIATION)
        theirs = numpy.stack([normalize(transforms.functional.to_tensor(image)).numpy() for image, _
                              in datasets.ImageFolder(self.root, transforms.Compose(
                                  [transforms.Resize(256), transforms.CenterCrop(224)]))])
        distance = numpy.abs(ours - theirs).max(axis=(0, 2, 3))
        self.assertTrue((distance <= 2 / 255 / numpy.array(DEVIATION)).all(), distance)

    def test_normalized_values_are_the_same_floats(self):
        write_pngs(self.folder)
        ours = self.filled((30, 60), "CenterCrop:30:60", "Normalize")
        chain = transforms.Compose([transforms.CenterCrop((30, 60)), transforms.ToTensor(),
                                    transforms.Normalize(MEAN, DEVIATION)])
        theirs = [chain(image).numpy() for image, _ in datasets.ImageFolder(self.root)]
        numpy.testing.assert_array_equal(ours, numpy.stack(theirs))

    def test_flips_are_the_same(self):
        write_jpegs(self.folder)
        crop = transforms.CenterCrop((90, 120))
        self.compare(self.filled((90, 120), "HorizontalFlip:1", "CenterCrop:90:120"),
                     self.theirs(transforms.RandomHorizontalFlip(1), crop))
        self.compare(self.filled((90, 120), "VerticalFlip:1", "CenterCrop:90:120"),
                     self.theirs(transforms.RandomVerticalFlip(1), crop))
        self.compare(self.filled((90, 120), "CenterCrop:90:120", "VerticalFlip:1",
                                 "HorizontalFlip:1"),
                     self.theirs(crop, transforms.RandomVerticalFlip(1),
                                 transforms.RandomHorizontalFlip(1)))

    def test_rotation_is_the_same(self):
        write_jpegs(self.folder, FEW)
        modes = transforms.InterpolationMode
        for size in ((90, 121), (100, 100)):
            for bilinear, mode in ((0, modes.NEAREST), (1, modes.BILINEAR)):
                for angle in (0, 20, -7.25, 90, 180, 270, 359.875, -450):
                    rotate = transforms.RandomRotation((angle, angle), mode, fill=(7, 100, 250))
                    ours = self.filled(size, f"CenterCrop:{size[0]}:{size[1]}",
                                       f"Rotate:{angle}:{bilinear}")
                    self.compare(ours, self.theirs(transforms.CenterCrop(size), rotate))

    def test_colours_are_the_same(self):
        write_jpegs(self.folder, FEW)
        for name, factors in (("brightness", (0, 0.3, 1, 1.7)), ("contrast", (0, 0.3, 1, 1.7)),
                              ("saturation", (0, 0.3, 1, 2.6)), ("hue", (-0.5, -0.2, 0.03, 0.5))):
            for factor in factors:
                jitter = transforms.ColorJitter(**{name: (factor, factor)})
                ours = self.filled((90, 121), "CenterCrop:90:121", f"{name.title()}:{factor}")
                self.compare(ours, self.theirs(transforms.CenterCrop((90, 121)), jitter))

    def test_blur_is_at_most_1_off(self):
        write_jpegs(self.folder, FEW)
        for kernel, sigma in ((3, 0.1), (3, 2.0), (5, 1.1), (23, 4.5)):
            ours = self.filled((90, 121), "CenterCrop:90:121", f"Blur:{kernel}:{sigma}")
            blur = transforms.GaussianBlur(kernel, (sigma, sigma))
            share = self.compare(ours, self.theirs(transforms.CenterCrop((90, 121)), blur), most=1)
            self.assertLess(share, 1e-4)

    def test_a_whole_recipe_is_close(self):
        """Resize(255), CenterCrop, flip, rotation, blur, Normalize, without chance."""
        write_jpegs(self.folder)
        ours = self.filled((224, 224), "Resize:255", "CenterCrop:224:224", "HorizontalFlip:1",
                           "Rotate:20:0", "Blur:3:1.5")
        theirs = self.theirs(transforms.Resize(255), transforms.CenterCrop(224),
                             transforms.RandomHorizontalFlip(1),
                             transforms.RandomRotation((20, 20), fill=(7, 100, 250)),
                             transforms.GaussianBlur(3, (1.5, 1.5)))
        self.compare(ours, theirs, most=1)


unittest.main()
