// The parts of a layer that treat every token alike, a block of tokens at a time.
//
// A block goes through product and short convolution, or through norm, product, activation, product,
// while it is in a second-level cache, on one thread; the wide activations are never in memory as a
// whole. Few tokens are one block, whose products then share the threads. The bits are those of the
// kernels one by one.
#pragma once

#include "linear.hpp"
#include "norm.hpp"
#include "shortconv.hpp"

namespace hyena {

struct Dense {
  const PackedLinear* weight;
  const float* bias;  // [N] or null
};

enum class Wide { gelu_tanh, gelu_erf, swiglu };

/// What a product is followed by; the gate of swiglu needs both of its halves.
constexpr Activation inner_activation(Wide act) {
  return act == Wide::gelu_tanh  ? Activation::gelu_tanh
         : act == Wide::gelu_erf ? Activation::gelu_erf
                                 : Activation::none;
}

/// Sequences end to end: sequence b has rows offsets[b] .. offsets[b + 1].
struct Sequences {
  const std::int64_t* offsets;  // [count + 1]
  std::int64_t count;
};

/// job.out and job.product = short_conv(norm(x) W^T + b), x [T, D], of every sequence by itself, for the last C
/// outputs of the projection `in`, C being job.taps.cols; norm may be null; job.x and job.tail are not read.
/// tails [count * (K - 1), C] holds the projected rows before each sequence and then its last ones; null: zeros,
/// and nothing is kept. Throws std::bad_alloc before any work.
void project_conv(ConstRows x, const Norm* norm, const Dense& in, const ShortConv& job, const Sequences& sequences,
                  Rows tails, int threads);

/// residual [T, D] += z W^T + b for tiles z [G, T, 16] of `in_features` channels.
void add_tiles(const TileView& z, const Dense& out, Rows residual, int threads);

/// x [T, D] += (gate * z) W^T + b for tiles z [G, T, 16], where gate is short_conv(norm(x) V^T + a) of x as it comes
/// in, for the first job.taps.cols outputs of the projection `in`. It is made a block at a time and never in memory
/// as a whole. Sequences and tails as in project_conv; job.out and job.product are not used.
void add_gated_tiles(Rows x, const Norm* norm, const Dense& in, const ShortConv& job, const Sequences& sequences,
                     Rows tails, const TileView& z, const Dense& out, int threads);

/// x [T, D] += down(act(up norm(x))).
void add_mlp(Rows x, const Norm& norm, const Dense& up, Wide act, const Dense& down, int threads);

}  // namespace hyena
