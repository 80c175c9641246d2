#include "activation.hpp"

#include "activate.hpp"
#include "parallel.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

// One piece: enough elements that handing it to a sleeping thread (20-25 us) pays.
constexpr std::int64_t kPiece = 32768;

/// y[i, c] = f(x[i, c], x2[i, c]) in vectors; the end of a row goes through a padded vector, so
/// that every element sees the same instructions.
template <class F>
void map(ConstRows x, ConstRows x2, Rows y, int threads, F f) noexcept {
  const std::int64_t block = y.cols < kPiece ? kPiece / (y.cols > 0 ? y.cols : 1) : 1;
  parallel_for(pieces_of(y.rows, block), threads, [&](std::int64_t piece, int) {
    const std::int64_t end = (piece + 1) * block < y.rows ? (piece + 1) * block : y.rows;
    for (std::int64_t i = piece * block; i < end; i++) {
      const float *a = x.row(i), *b = x2.row(i);
      float* out = y.row(i);
      std::int64_t c = 0;
      for (; c + kLanes <= y.cols; c += kLanes) store(out + c, f(load(a + c), load(b + c)));
      if (c < y.cols) store_part(out + c, f(load_part(a + c, y.cols - c), load_part(b + c, y.cols - c)), y.cols - c);
    }
  });
}

}  // namespace

void activate(Activation act, ConstRows x, Rows y, int threads) noexcept {
  switch (act) {
    case Activation::gelu_tanh:
      return map(x, x, y, threads, [](vf a, vf) { return gelu_tanh<kLanes>(a); });
    case Activation::gelu_erf:
      return map(x, x, y, threads, [](vf a, vf) { return gelu_erf<kLanes>(a); });
    case Activation::silu:
      return map(x, x, y, threads, [](vf a, vf) { return silu<kLanes>(a); });
    case Activation::none:
      return map(x, x, y, threads, [](vf a, vf) { return a; });
  }
}

void gate(Gate kind, ConstRows x, Rows y, int threads) noexcept {
  const ConstRows second{x.data + y.cols, x.rows, y.cols, x.stride};
  if (kind == Gate::swiglu)
    map(x, second, y, threads, [](vf a, vf b) { return silu<kLanes>(a) * b; });
  else
    map(x, second, y, threads, [](vf a, vf b) { return a * sigmoid<kLanes>(b); });
}

void exponential(ConstRows x, Rows y, int threads) noexcept {
  map(x, x, y, threads, [](vf a, vf) { return exp<kLanes>(a); });
}

}  // namespace hyena
