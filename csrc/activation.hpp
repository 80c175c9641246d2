// Activations and gates of rows.
#pragma once

#include "rows.hpp"

namespace hyena {

enum class Activation { none, gelu_tanh, gelu_erf, silu };
enum class Gate { swiglu, glu };

/// y [T, D] = act(x [T, D]); y may be x.
void activate(Activation act, ConstRows x, Rows y, int threads) noexcept;

/// y [T, F] from x [T, 2F]: swiglu is silu(first half) * second, glu is first * sigmoid(second).
void gate(Gate kind, ConstRows x, Rows y, int threads) noexcept;

/// y = e^x by the vector function that every kernel uses.
void exponential(ConstRows x, Rows y, int threads) noexcept;

}  // namespace hyena
