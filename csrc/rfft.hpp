// Real Fourier transforms of several channels at once, one channel in every lane.
#pragma once

#include <cstdint>
#include <memory>

#include "simd.hpp"

namespace hyena {

constexpr std::int64_t kLargestTransform = std::int64_t{1} << 31;

/// Smallest supported size >= minimum; 0 if there is none. Sizes are 2^k, 3 * 2^k and 5 * 2^k,
/// even, up to kLargestTransform.
std::int64_t transform_size(std::int64_t minimum);

/// A plan for one size. Spectra are in halfcomplex order: r0, r1, i1, r2, i2, ..., r(size / 2).
class Rfft {
 public:
  /// `size` must be a supported one. Throws std::bad_alloc.
  explicit Rfft(std::int64_t size);
  ~Rfft();
  Rfft(const Rfft&) = delete;
  Rfft& operator=(const Rfft&) = delete;

  std::int64_t size() const { return size_; }

  /// In place on x [size], L = 4 .. kLanes; work [size] is overwritten. Both 64-byte aligned.
  /// backward(forward(x)) is size * x.
  template <int L>
  void forward(vec<L>* x, vec<L>* work) const noexcept;
  template <int L>
  void backward(vec<L>* x, vec<L>* work) const noexcept;

 private:
  struct Plan;
  std::int64_t size_;
  std::unique_ptr<const Plan> plan_;
};

/// The plan for `size` from one cache, kept for the life of the process (a plan is about
/// 4 * size bytes, a sixteenth of the smallest buffer it works on). Locked; throws std::bad_alloc.
std::shared_ptr<const Rfft> rfft_plan(std::int64_t size);

}  // namespace hyena
