// Matrix products with packed weights.
#pragma once

#include <memory>

#include "activation.hpp"
#include "aligned.hpp"
#include "rows.hpp"
#include "shelf.hpp"

namespace hyena {

/// What is multiplied. Sums, and all that comes in and goes out, are float32. thirds: float32 as sums of bfloat16
/// numbers, as exact and faster (thirds.hpp); builds without tile registers take them for float32.
enum class Numbers { float32, thirds, bfloat16 };
bool multiplies_thirds() noexcept;  // whether this build has tile registers

/// A weight [N, K] as panels [ceil(N / P)][words][P]: P outputs side by side (kPanel of format.hpp), so that a
/// product reads it from start to end. A word is an input, or a pair of them; thirds are laid out as thirds.hpp
/// says. Missing outputs of the last panel are zero, or those of the weight that it is a part of.
class PackedLinear {
 public:
  /// weight [N, K]; `shelf` to lie on, or null. Throws std::bad_alloc.
  PackedLinear(ConstRows weight, Numbers numbers, Shelf* shelf);
  /// `outputs` outputs from the first one of a panel on, in the same memory.
  PackedLinear part(std::int64_t panel, std::int64_t outputs) const;
  std::int64_t out_features() const { return n_; }
  std::int64_t in_features() const { return k_; }
  Numbers numbers() const { return numbers_; }
  std::int64_t words() const { return numbers_ == Numbers::bfloat16 ? (k_ + 1) / 2 : k_; }
  std::int64_t panels() const { return panels_; }
  std::int64_t panel_floats() const { return panel_floats_; }
  std::int64_t nbytes() const { return panels() * panel_floats() * static_cast<std::int64_t>(sizeof(float)); }
  const float* panel(std::int64_t p) const { return data_.get() + p * panel_floats(); }

 private:
  /// Outputs from `first` on, as words.
  void pack_panel(ConstRows weight, std::int64_t first, float* panel) const;

  std::int64_t n_, k_;
  Numbers numbers_;
  std::int64_t panels_, panel_floats_;
  std::shared_ptr<float[]> data_;
};

struct Epilogue {
  const float* bias = nullptr;  // [N]
  Activation activation = Activation::none;
  ConstRows residual{nullptr, 0, 0, 0};  // [T, N]
};

/// y [T, N] = act(x [T, K] W^T + bias) + residual; y may be the residual but not x. The sum of an element is one
/// chain of fma over increasing k, or one of another kind (format.hpp), but the same whatever T is; with bfloat16
/// weights x is rounded to bfloat16. Throws std::bad_alloc before any work.
void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, int threads);

/// The same on the calling thread, for use inside a piece of larger work, with memory from outside:
/// linear_scratch() floats, 64-byte aligned, are enough for any product.
void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, float* scratch) noexcept;
/// And of it the outputs of panels [begin, end) alone.
void linear_panels(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, std::int64_t begin,
                   std::int64_t end, float* scratch) noexcept;
std::int64_t linear_scratch();

}  // namespace hyena
