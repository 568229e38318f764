// Mean and variance of a set of values, in a form that can be joined with that of another set.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;  // Sum of squared distances from the mean.

  // Joins the moments of another set: equation 2.1 of Chan, Golub and LeVeque, "Updating formulae
  // and a pairwise algorithm for computing sample variances" (1979), in the form for any two
  // counts.
  void join(const Moments& other) {
    if (other.count == 0) return;
    const double both = count + other.count;
    const double delta = other.mean - mean;
    mean += delta * (other.count / both);
    m2 += other.m2 + delta * delta * (count * other.count / both);
    count = both;
  }
};

}  // namespace lockstep
