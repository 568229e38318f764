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
    """All colour types and depths, from random bytes. Palettes are shorter than the range of
    indices."""
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


def lzw(indices, bits):
    """Codes of one length: a clear code precedes each growth."""
    clear, codes = 1 << bits, []
    for number, index in enumerate(indices):
        codes += [clear, index] if number % (clear - 2) == 0 else [index]
    total = 0
    for code in reversed([*codes, clear + 1]):
        total = total << (bits + 1) | code
    data = total.to_bytes((len(codes) + 1) * (bits + 1) // 8 + 1, "little")
    return bytes([bits]) + b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255]
                                    for i in range(0, len(data), 255)) + b"\0"


def gif(screen, place, indices, palette=None, local=None, transparent=None, interlaced=False):
    """A GIF of one frame, whose palettes have 2, 4, ... 256 colours."""
    def flags(colors):
        return 0x80 | (len(colors) // 3).bit_length() - 2 if colors else 0

    control = b"" if transparent is None else struct.pack("<BBBBHBB", 0x21, 0xf9, 4, 1, 7,
                                                          transparent, 0)
    return b"".join([
        b"GIF89a", struct.pack("<HHBBB", *screen, flags(palette), 1, 0), palette or b"",
        b"!\xfe\3abc\0", control,
        struct.pack("<BHHHHB", 0x2c, *place, flags(local) | 0x40 * interlaced), local or b"",
        lzw(indices, 8), b";"])


def write_gifs(folder):
    noise = numpy.random.RandomState(4)
    image = PIL.Image.fromarray(picture(90, 70))
    for colors in (256, 17, 2):
        image.quantize(colors).save(folder / f"{colors}.gif.png", "GIF")
    image.convert("L").save(folder / "grey.gif.png", "GIF", interlace=0)
    frames = [PIL.Image.fromarray(picture(90, 70, seed)) for seed in (1, 2, 3)]
    frames[0].save(folder / "animated.gif.png", "GIF", save_all=True, append_images=frames[1:])
    greys = bytes(value for index in range(256) for value in [index] * 3)
    for name, options in {
            "few": {"palette": noise.bytes(3 * 4)}, "none": {}, "greys": {"palette": greys},
            "local": {"palette": noise.bytes(3 * 256), "local": noise.bytes(3 * 128)},
            "local greys": {"palette": noise.bytes(3 * 256), "local": greys},
            "transparent": {"palette": noise.bytes(3 * 256), "transparent": 9},
            "interlaced": {"palette": noise.bytes(3 * 256), "interlaced": True}}.items():
        for place in ((0, 0, 31, 23), (5, 3, 20, 11), (20, 9, 31, 23)):
            indices = noise.bytes(place[2] * place[3])
            (folder / f"{name} {place}.gif.png").write_bytes(
                gif((31, 23), place, indices, **options))


def bmp(width, height, bits, data, compression=0, palette=b"", masks=b"", size=40, colors=0):
    """`data` are the rows as they are in the file."""
    if size == 12:
        header = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        header = struct.pack("<IiiHHIIIIII", size, width, height, 1, bits, compression, len(data),
                             0, 0, colors, 0)
        header += masks if size == 40 else masks.ljust(size - 40, b"\0")
    offset = 14 + len(header) + len(palette)
    return struct.pack("<2sIHHI", b"BM", offset + len(data), 0, 0, offset) + header + palette + data


def write_bmps(folder):
    noise = numpy.random.RandomState(6)
    files = {}
    for bits in (1, 4, 8, 16, 24, 32):
        data = noise.bytes((51 * bits + 31) // 32 * 4 * 23)
        palette = noise.bytes(4 << bits) if bits <= 8 else b""
        for size in (40, 52, 56, 64, 108, 124):
            files[f"{bits}-{size}"] = bmp(51, 23, bits, data, palette=palette, size=size)
        files[f"{bits} top down"] = bmp(51, -23, bits, data, palette=palette)
        if bits != 16 and bits != 32:
            files[f"{bits} core"] = bmp(51, 23, bits, data, size=12,
                                        palette=noise.bytes(3 << bits) if bits <= 8 else b"")
    data = noise.bytes(52 * 23)
    files["greys"] = bmp(51, 23, 8, data, palette=bytes(
        value for index in range(256) for value in (index, index, index, 0)))
    files["few colours"] = bmp(51, 23, 8, data, palette=noise.bytes(4 * 10), colors=10)
    bits = noise.bytes(8 * 23)
    files["black and white"] = bmp(51, 23, 1, bits, palette=b"\0\0\0\0\xff\xff\xff\0")
    files["white and black"] = bmp(51, 23, 1, bits, palette=b"\xff\xff\xff\0\0\0\0\0")
    data = noise.bytes(4 * 51 * 23)
    for number, masks in enumerate((
            (0xFF0000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0),
            (0xFF000000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
            (0xFF, 0xFF00, 0xFF0000, 0xFF000000), (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
            (0xFF000000, 0xFF00, 0xFF, 0xFF0000), (0, 0, 0, 0))):
        files[f"masks {number}"] = bmp(51, 23, 32, data, 3, masks=struct.pack("<4I", *masks),
                                       size=108)
    for name, masks in (("565", (0xF800, 0x7E0, 0x1F)), ("555", (0x7C00, 0x3E0, 0x1F))):
        files[name] = bmp(51, 23, 16, noise.bytes(104 * 23), 3, masks=struct.pack("<3I", *masks))
    # Runs, literals of odd length, a jump, and ends of rows.
    rows = b"".join(bytes([20, row, 0, 5]) + noise.bytes(5) + b"\0" + bytes([7, row + 1]) +
                    bytes([0, 0]) for row in range(10)) + bytes([0, 2, 3, 1, 9, 7, 0, 0])
    for bits, compression in ((8, 1), (4, 2)):
        literal = rows if bits == 8 else rows.replace(b"\0\5", b"\0\x0a")
        files[f"run length {bits}"] = bmp(32, 11, bits, literal * 2 + bytes([0, 0]) * 30,
                                          compression, palette=noise.bytes(4 << bits))
    for name, file in files.items():
        (folder / f"{name}.bmp").write_bytes(file)
    for mode in ("RGB", "L", "1", "P", "RGBA"):
        PIL.Image.fromarray(picture(50, 31)).convert(mode).save(folder / f"pillow {mode}.bmp")


def write_pnms(folder):
    noise = numpy.random.RandomState(7)
    files = {"bits": b"P4\n51 23\n" + noise.bytes(7 * 23),
             "plain bits": b"P1 # bits\n9 5\n" + b"0110 1#1\n0" * 9}
    for most in (1, 7, 255, 256, 1000, 65535):
        for kind, count in ((5, 1), (6, 3)):
            values = noise.randint(0, most + 1, 51 * 23 * count)
            raw = values.astype("u1" if most < 256 else ">u2").tobytes()
            header = f"{kind}\n# a comment\n51 23\n{most}\n"
            files[f"{kind}-{most}"] = b"P" + header.encode() + raw
            plain = f"P{kind - 3} 51\t23 {most}\n" + "\n".join(map(str, values)) + "\n"
            files[f"{kind - 3}-{most}"] = plain.encode()
    for name, file in files.items():
        (folder / f"{name}.ppm").write_bytes(file)


def write_flawed_jpegs(folder):
    """As in COCO and Cats-vs-Dogs: stray bytes before markers and after the end."""
    for progressive in (False, True):
        image = PIL.Image.fromarray(picture(90, 70))
        image.save(folder / "good.jpg", progressive=progressive)
        good = (folder / "good.jpg").read_bytes()
        for number, marker in enumerate((b"\xff\xdb", b"\xff\xc4", b"\xff\xda", b"\xff\xd9")):
            at = good.rindex(marker)
            (folder / f"{progressive}-{number}.jpg").write_bytes(good[:at] + b"s" * 20 + good[at:])
        (folder / f"{progressive}-tail.jpg").write_bytes(good + b"\0\xff\xd8tail")
        jfif = good.index(b"JFIF")
        (folder / f"{progressive}-version.jpg").write_bytes(
            good[:jfif + 5] + b"\7\0" + good[jfif + 7:])


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
        """Compares floats of bytes, which may differ by so many 255ths. Returns the share of
        other values."""
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

    def compare_formats(self):
        for height, width in ((LARGE, LARGE), (33, 21)):
            self.compare(self.filled((height, width), f"CenterCrop:{height}:{width}"),
                         self.theirs(transforms.CenterCrop((height, width))))

    def test_gif_is_decoded_to_pillows_pixels(self):
        write_gifs(self.folder)
        self.compare_formats()

    def test_bmp_is_decoded_to_pillows_pixels(self):
        write_bmps(self.folder)
        self.compare_formats()

    def test_pnm_is_decoded_to_pillows_pixels(self):
        write_pnms(self.folder)
        self.compare_formats()

    def test_jpeg_with_stray_bytes_is_decoded_to_pillows_pixels(self):
        write_flawed_jpegs(self.folder)
        self.compare_formats()

    def test_the_first_frame_of_an_animated_webp_is_that_of_pillow(self):
        for name, options in (("lossy", {}), ("lossless", {"lossless": True})):
            frames = [PIL.Image.fromarray(picture(90, 71, seed)) for seed in (1, 2, 3)]
            frames[0].save(self.folder / f"{name}.webp", save_all=True, append_images=frames[1:],
                           **options)
            for frame in frames:
                frame.putalpha(frame.convert("L"))
            # Transparent borders: the encoder stores a smaller frame at an offset.
            frames[0].paste((0, 0, 0, 0), (0, 0, 90, 10))
            frames[0].paste((0, 0, 0, 0), (0, 0, 7, 71))
            frames[0].save(self.folder / f"{name} alpha.webp", save_all=True,
                           append_images=frames[1:], **options)
        self.compare_formats()

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
        for tiny in self.folder.glob("4-*"):  # torchvision crops one pixel to nothing.
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
        """Resize(255), CenterCrop, flip, rotation, blur, Normalize, without randomness."""
        write_jpegs(self.folder)
        ours = self.filled((224, 224), "Resize:255", "CenterCrop:224:224", "HorizontalFlip:1",
                           "Rotate:20:0", "Blur:3:1.5")
        theirs = self.theirs(transforms.Resize(255), transforms.CenterCrop(224),
                             transforms.RandomHorizontalFlip(1),
                             transforms.RandomRotation((20, 20), fill=(7, 100, 250)),
                             transforms.GaussianBlur(3, (1.5, 1.5)))
        self.compare(ours, theirs, most=1)


unittest.main()
