// Transforms of real sequences for convolution, several channels at once, one in every lane.
//
// A real polynomial of M coefficients is determined modulo t^M + 1 by its residue modulo
// t^N - i, N = M / 2, which has the N complex coefficients x[t] + i x[t + N]. The roots of
// t^N = i are w z with w = exp(i pi / M) and z an Nth root of unity, so the transform is a complex
// one of N points after a twist by w^t. For real sequences padded to M that is half the points
// of an ordinary transform, no real-to-complex step, and (measured) 1.5 to 2.9 times the speed.
#pragma once

#include <cstdint>
#include <memory>

#include "aligned.hpp"
#include "simd.hpp"

namespace hyena {

constexpr std::int64_t kLargestTransform = std::int64_t{1} << 31;

/// Smallest supported size >= minimum; 0 if there is none. Sizes are 2^k, 3 * 2^k and 5 * 2^k,
/// even, up to kLargestTransform.
std::int64_t transform_size(std::int64_t minimum);

template <int L>
struct Complex {
  vec<L> re, im;
};

/// A plan for one size M.
class RealTransform {
 public:
  /// `size` must be a supported one. Throws std::bad_alloc.
  explicit RealTransform(std::int64_t size);
  ~RealTransform();
  RealTransform(const RealTransform&) = delete;
  RealTransform& operator=(const RealTransform&) = delete;

  /// N, the number of complex points.
  std::int64_t points() const { return points_; }
  /// [N, 2]: real and imaginary part of w^t, by which the caller multiplies x[t] before forward;
  /// after backward it multiplies by the conjugate.
  const float* twist() const { return twist_.get(); }

  /// In place on x [N], L = 4 .. kLanes; work [N] is overwritten. Both 64-byte aligned.
  /// backward(forward(x)) is N * x.
  template <int L>
  void forward(Complex<L>* x, Complex<L>* work) const noexcept;
  template <int L>
  void backward(Complex<L>* x, Complex<L>* work) const noexcept;

 private:
  struct Plan;
  std::int64_t points_;
  AlignedArray<float> twist_;
  std::unique_ptr<const Plan> plan_;
};

/// The plan for `size` from one cache, kept for the life of the process (about 8 * size bytes, an
/// eighth of what a convolution of that size works on). Locked; throws std::bad_alloc.
std::shared_ptr<const RealTransform> transform_plan(std::int64_t size);

}  // namespace hyena
