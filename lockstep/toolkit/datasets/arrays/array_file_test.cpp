// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/arrays/array_file.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <fstream>
#include <numeric>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::datasets::array_file_test {
namespace {

namespace fs = std::filesystem;
using test::fault_of;

std::string npy(std::string text, const std::string& values) {
  constexpr std::size_t fixed = 10;
  text.append(63 - (fixed + text.size()) % 64, ' ');
  text += '\n';
  std::string file("\x93NUMPY\x01\0", 8);
  file += static_cast<char>(text.size() & 0xff);
  file += static_cast<char>(text.size() >> 8);
  return file + text + values;
}

template <class Number>
std::string counted(std::size_t count) {
  std::vector<Number> numbers(count);
  std::iota(numbers.begin(), numbers.end(), Number{0});
  return {reinterpret_cast<const char*>(numbers.data()), count * sizeof(Number)};
}

class ArrayFiles : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_.path() / name, std::ios::binary) << bytes;
    return folder_.path() / name;
  }

 private:
  const test::ScratchDirectory folder_;
};

constexpr const char* two_by_three = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

TEST_F(ArrayFiles, AreTensorsWithoutACopy) {
  at::Tensor tensor;
  {
    const ArrayFile file(write("x.npy", npy(two_by_three, counted<float>(6))));
    tensor = file.tensor();
  }
  EXPECT_TRUE(tensor.equal(at::arange(6, at::kFloat).view({2, 3})));
}

TEST_F(ArrayFiles, StayAsTheyAreWhenTheTensorIsWrittenTo) {
  const auto path = write("x.npy", npy(two_by_three, counted<float>(6)));
  const ArrayFile ours(path), theirs(path);
  at::Tensor tensor = ours.tensor();
  tensor.mul_(2);
  EXPECT_EQ(tensor.sum().item<float>(), 30);
  EXPECT_EQ(theirs.tensor().sum().item<float>(), 15);
  EXPECT_EQ(ArrayFile(path).tensor().sum().item<float>(), 15);
}

TEST_F(ArrayFiles, MayBeNumbersOrEmpty) {
  const ArrayFile number(
      write("n.npy", npy("{'descr': '|i1', 'fortran_order': False, 'shape': (), }", "\x05")));
  EXPECT_EQ(number.tensor().dim(), 0);
  EXPECT_EQ(number.tensor().item<int>(), 5);
  const ArrayFile empty(
      write("e.npy", npy("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 4), }", "")));
  EXPECT_EQ(empty.tensor().sizes(), (at::IntArrayRef{0, 4}));
}

TEST_F(ArrayFiles, InFortranOrderHaveTheStridesOfNumPy) {
  const ArrayFile file(
      write("f.npy",
            npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", counted<float>(6))));
  EXPECT_EQ(file.tensor().strides(), (at::IntArrayRef{1, 2}));
  EXPECT_TRUE(file.tensor().equal(at::arange(6, at::kFloat).view({3, 2}).t()));
}

TEST_F(ArrayFiles, MayHaveTheHeadersOfOtherWriters) {
  for (const char* text : {"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
                           "{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3), }",
                           "{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3), }",
                           "{'descr': 'float32', 'fortran_order': False, 'shape': (2, 3), }",
                           "{'descr': u'<f', 'fortran_order': False, 'shape': (2, 3), }",
                           "{'shape':(2,3),\t'descr':\"<f4\",'fortran_order':False}"})
    EXPECT_TRUE(ArrayFile(write("x.npy", npy(text, counted<float>(6))))
                    .tensor()
                    .equal(at::arange(6, at::kFloat).view({2, 3})))
        << text;
}

TEST_F(ArrayFiles, AreCopiedIfTheirValuesLieAtAnOddPlace) {
  std::string file = npy(two_by_three, counted<float>(6));
  file.erase(100, 1);
  --file[8];
  const ArrayFile array(write("x.npy", file));
  EXPECT_TRUE(array.tensor().equal(at::arange(6, at::kFloat).view({2, 3})));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.tensor().const_data_ptr()) % alignof(float), 0U);
}

TEST_F(ArrayFiles, RefuseAnotherFormatByItsName) {
  std::string text;
  const auto refusal = [&](const std::string& bytes) {
    return fault_of([&] { ArrayFile{write("x.npy", bytes)}; }, &text);
  };
  EXPECT_EQ(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), Fault::corrupt);
  EXPECT_NE(text.find("found a pointer of Git LFS, not the file itself"), text.npos) << text;
  EXPECT_EQ(refusal(std::string("\x80\2]q\0.", 6)), Fault::corrupt);
  EXPECT_NE(text.find("found a pickle of Python"), text.npos) << text;
}

TEST_F(ArrayFiles, AreRefusedWithTheRemedy) {
  struct Case {
    const char* text;
    Fault fault;
    const char* message;
  };
  const Case cases[]{
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", Fault::unsupported,
       "big-endian"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", Fault::unsupported, "pickle"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", Fault::unsupported,
       "named fields"},
      {"{'descr': '<U6', 'fortran_order': False, 'shape': (1,), }", Fault::unsupported,
       "type '<U6', which tensors do not have"},
      {"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3,), }", Fault::unsupported,
       "type '<M8[ns]', which tensors do not have: dates and times may be saved as"},
      {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", Fault::unsupported,
       "astype('float64')"},
      {"{'descr': '|V24', 'fortran_order': False, 'shape': (1,), }", Fault::unsupported, "'|V24'"},
      {"{'descr': '', 'fortran_order': False, 'shape': (6,), }", Fault::unsupported, "type ''"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", Fault::corrupt,
       "x.npy: byte 128: expected 32 bytes of values for the shape, found 24"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", Fault::corrupt, "expected ','"},
      {"{'descr': '<f4', 'shape': (2, 3), }", Fault::corrupt, "fortran_order"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
       Fault::corrupt, "each key once"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
       Fault::corrupt, "larger"},
      // Without the dimension of 0, the strides would overflow.
      {"{'descr': '|i1', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4), }",
       Fault::corrupt, "larger"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", Fault::corrupt,
       "a dimension"},
  };
  for (const Case& each : cases) {
    const auto path = write("x.npy", npy(each.text, counted<float>(6)));
    std::string text;
    EXPECT_EQ(fault_of([&] { ArrayFile{path}; }, &text), each.fault) << each.text;
    EXPECT_NE(text.find(each.message), text.npos) << text;
  }
}

TEST_F(ArrayFiles, AreRefusedAtEveryLengthButTheirOwn) {
  const std::string whole = npy(two_by_three, counted<float>(6));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(fault_of([&] { ArrayFile{write("x.npy", whole.substr(0, size))}; }), Fault::corrupt)
        << size << " bytes";
  EXPECT_EQ(fault_of([&] { ArrayFile{write("x.npy", whole + "y")}; }), Fault::corrupt);
}

}  // namespace
}  // namespace lockstep::datasets::array_file_test
