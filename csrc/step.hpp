// The decode step: one token of each of several sequences through a whole model.
//
// A tape is a list of what happens to a token, layer by layer, recorded once per model. Running it takes
// one parallel region, whose threads go from operation to operation together (crew.hpp). It has the bits
// of the kernels one by one.
#pragma once

#include <variant>
#include <vector>

#include "attention.hpp"
#include "convtail.hpp"
#include "linear.hpp"
#include "norm.hpp"
#include "onlineconv.hpp"
#include "tokenwise.hpp"

namespace hyena {

/// Rows that operations read and write, one per sequence.
enum class Place { residual, wide, mixed, logits };

/// to (+)= act(norm(from) W^T + bias). swiglu: the halves of `from` are gated first.
struct ProductOp {
  PackedLinear weight;
  const float* bias;
  Place from, to;
  const Norm* norm = nullptr;
  Activation activation = Activation::none;
  bool swiglu = false, add = false;
};

/// mixed = what the gates and convolutions of a Hyena operator make of wide [(order + 1) D].
struct HyenaOp {
  std::int64_t order;
  ConstRows taps;                   // [K, (order + 1) D]
  const float* bias;                // or null
  std::vector<const float*> skips;  // [G, 16] each, or null; of order - 1 long convolutions
  std::size_t tail, conv;           // numbers of its tail and of its first convolution in a batch
};

/// Turns queries and keys in wide [3 H hd] and appends keys and values to the cache.
struct KeysOp {
  std::int64_t heads, width;
  std::vector<double> rates;  // empty: nothing is turned
  std::size_t cache;          // its number in a batch
};

/// mixed = attention of the queries in wide.
struct AttendOp {
  std::int64_t heads, width, window;
  std::size_t cache;
};

/// residual += norm(residual).
struct AddNormOp {
  const Norm* norm;
};

using StepOp = std::variant<ProductOp, HyenaOp, KeysOp, AttendOp, AddNormOp>;

/// A cache with room for the next position at `slot`, which sees nothing before `start`.
struct CacheSlot {
  CacheOf<float> cache;
  std::int64_t slot, start;
};

/// B sequences: their tokens, and what each layer remembers of them, all different. Tails have known
/// rows, convolutions room for one step.
struct StepBatch {
  std::vector<std::int64_t> tokens, positions;  // [B]
  std::vector<ConvTail*> tails;                 // [tails, B]
  std::vector<OnlineState*> convs;              // [convolutions, B]
  std::vector<CacheSlot> caches;                // [caches, B]
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// Arrays that it is given, norms included, have to outlive it.
struct StepTape {
  ConstRows embedding;  // [V, D]
  ConstRows positions;  // [L, D], or no data
  std::int64_t worth;   // multiply-adds that pay for one more thread
  std::vector<StepOp> ops;
  std::size_t tails = 0, convs = 0, caches = 0;

  std::int64_t width() const { return embedding.cols; }
  /// Outputs of the last product.
  std::int64_t logits_width() const;

  void add_hyena(const Norm* norm, const Dense& in, HyenaOp op, const Dense& out);
  void add_attention(const Norm* norm, const Dense& qkv, KeysOp keys, std::int64_t window, const Dense& out);
  void add_mlp(const Norm* norm, const Dense& up, Wide act, const Dense& down);
  void add_head(const Norm* norm, const Dense& head);

  /// logits [B, V] of the tokens of a batch, which its states take in, caches apart: a slot more of them is
  /// in use. Throws std::bad_alloc; convolutions are then to be rewound to their positions, and nothing
  /// else has changed.
  void run(const StepBatch& batch, Rows logits, int threads) const;
};

}  // namespace hyena
