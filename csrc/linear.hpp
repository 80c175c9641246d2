// Matrix products with packed weights.
#pragma once

#include "activation.hpp"
#include "aligned.hpp"
#include "rows.hpp"
#include "simd.hpp"

namespace hyena {

/// Columns of a panel: two vectors.
constexpr std::int64_t kPanel = 2 * kLanes;

/// A weight [N, K] as panels [ceil(N / kPanel)][K][kPanel]: kPanel outputs side by side, so that
/// a product reads it from start to end. Missing outputs of the last panel are zero.
class PackedLinear {
 public:
  explicit PackedLinear(ConstRows weight);  // [N, K]; throws std::bad_alloc
  std::int64_t out_features() const { return n_; }
  std::int64_t in_features() const { return k_; }
  std::int64_t panels() const { return (n_ + kPanel - 1) / kPanel; }
  std::int64_t nbytes() const { return panels() * k_ * kPanel * static_cast<std::int64_t>(sizeof(float)); }
  const float* panel(std::int64_t p) const { return data_.get() + p * k_ * kPanel; }

 private:
  std::int64_t n_, k_;
  AlignedArray<float> data_;
};

struct Epilogue {
  const float* bias = nullptr;  // [N]
  Activation activation = Activation::none;
  ConstRows residual{nullptr, 0, 0, 0};  // [T, N]
};

/// y [T, N] = act(x [T, K] W^T + bias) + residual; y may be the residual but not x. Every element
/// is one chain of fma over increasing k whatever T is. Throws std::bad_alloc before any work.
void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, int threads);

/// The same on the calling thread, for use inside a piece of larger work, with memory from outside:
/// linear_scratch() floats, 64-byte aligned, are enough for any product.
void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, float* scratch) noexcept;
std::int64_t linear_scratch();

}  // namespace hyena
