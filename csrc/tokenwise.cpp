#include "tokenwise.hpp"

#include <algorithm>

#include "aligned.hpp"
#include "norm.hpp"
#include "parallel.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kBlock = 128;  // tokens of a piece: a 1,024-wide activation of them is 512 KiB

template <class Float>
RowsOf<Float> cut(RowsOf<Float> x, std::int64_t begin, std::int64_t end) {
  return {x.data + begin * x.stride, end - begin, x.cols, x.stride};
}

/// Rows of a worker's scratch, one after another and 16 floats apart beyond their width: never a
/// power of two.
Rows scratch_rows(float* data, std::int64_t rows, std::int64_t cols) { return {data, rows, cols, cols + 16}; }
std::int64_t scratch_size(std::int64_t rows, std::int64_t cols) { return rows * (cols + 16); }

void normalize(ConstRows x, const Norm& norm, Rows y) {
  if (norm.rms)
    rms_norm(x, norm.weight, norm.eps, y, 1);
  else
    layer_norm(x, norm.weight, norm.bias, norm.eps, y, 1);
}

Epilogue epilogue(const Dense& dense, Activation act = Activation::none) {
  Epilogue e;
  e.bias = dense.bias;
  e.activation = act;
  return e;
}

/// One block's products: inside a piece on that thread, alone on all of them. The bits are the same.
struct Products {
  int threads;     // 1 inside a piece
  float* scratch;  // linear_scratch(rows) floats inside a piece
  void operator()(ConstRows x, const Dense& dense, const Epilogue& e, Rows y) const {
    if (threads == 1)
      linear(x, *dense.weight, e, y, scratch);
    else
      linear(x, *dense.weight, e, y, threads);
  }
};

ConstRows read_only(Rows x) { return {x.data, x.rows, x.cols, x.stride}; }

/// f(begin, end, memory, products) for blocks of `rows` tokens, with `share` floats of memory each.
template <class F>
void for_blocks(std::int64_t rows, std::int64_t share, int threads, F f) {
  const std::int64_t blocks = (rows + kBlock - 1) / kBlock;
  const std::int64_t products = linear_scratch();
  const auto memory = aligned_array<float>(workers(blocks, threads) * (share + products));
  if (blocks <= 1) {
    f(std::int64_t{0}, rows, memory.get() + products, Products{threads, memory.get()});
    return;
  }
  parallel_for(blocks, threads, [&](std::int64_t block, int worker) {
    float* own = memory.get() + worker * (share + products);
    f(block * kBlock, std::min((block + 1) * kBlock, rows), own + products, Products{1, own});
  });
}

TileView cut(const TileView& z, std::int64_t begin, std::int64_t end) {
  return {z.data == nullptr ? nullptr : z.data + begin * kTile, z.groups, end - begin, z.stride};
}

/// Short convolution of projected rows, sequence by sequence, with what came before each.
class TailedConv {
 public:
  TailedConv(const ShortConv& job, std::int64_t channels, const Sequences& sequences, float* tails)
      : job_(job), C_(channels), before_(job.short_taps - 1), sequences_(sequences), tails_(tails) {
    const std::int64_t size = sequences.count * before_ * C_;
    if (tails == nullptr) return;
    old_ = aligned_array<float>(size);
    std::copy_n(tails, size, old_.get());
  }

  std::int64_t before() const { return before_; }
  /// Floats of the memory that `block` works in.
  std::int64_t memory() const { return before_ * C_; }

  /// Outputs of rows [begin, end), given the projected rows p from row `from` on.
  void block(Rows p, std::int64_t from, std::int64_t begin, std::int64_t end, float* memory, int threads) const {
    const std::int64_t* const offsets = sequences_.offsets;
    std::int64_t b = std::upper_bound(offsets, offsets + sequences_.count + 1, begin) - offsets - 1;
    for (std::int64_t t = begin; t < end; b++) {
      const std::int64_t stop = std::min(end, offsets[b + 1]);
      copy_tail(p, from, b, t, memory);
      ShortConv own = job_;
      own.tail = {memory, before_, C_, C_};
      own.x = {p.row(t - from), stop - t, C_, p.stride};
      own.out = cut(job_.out, t, stop);
      own.product = cut(job_.product, t, stop);
      short_conv(own, threads);
      if (stop == offsets[b + 1] && tails_ != nullptr) copy_tail(p, from, b, stop, tails_ + b * before_ * C_);
      t = stop;
    }
  }

 private:
  /// The rows of sequence b that end before row t.
  void copy_tail(Rows p, std::int64_t from, std::int64_t b, std::int64_t t, float* to) const {
    const std::int64_t first = sequences_.offsets[b];
    for (std::int64_t at = t - before_; at < t; at++, to += C_) {
      if (at >= first)
        std::copy_n(p.row(at - from), C_, to);
      else if (old_ != nullptr)
        std::copy_n(old_.get() + (b * before_ + at - first + before_) * C_, C_, to);
      else
        std::fill_n(to, C_, 0.0f);
    }
  }

  const ShortConv& job_;
  const std::int64_t C_, before_;
  const Sequences& sequences_;
  float* const tails_;
  AlignedArray<float> old_;
};

}  // namespace

void project_conv(ConstRows x, const Norm* norm, const Dense& in, const ShortConv& job, const Sequences& sequences,
                  float* tails, int threads) {
  const std::int64_t D = x.cols, C = in.weight->out_features();
  const TailedConv conv(job, C, sequences, tails);
  // A block projects the rows before it, which its first outputs need, again: cheaper than waiting.
  const std::int64_t most = std::min(x.rows, kBlock + conv.before());
  const std::int64_t normed = scratch_size(most, D), projected = scratch_size(most, C);
  for_blocks(x.rows, normed + projected + conv.memory(), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const std::int64_t from = std::max<std::int64_t>(0, begin - conv.before());
               const Rows h = scratch_rows(memory, end - from, D), p = scratch_rows(memory + normed, end - from, C);
               if (norm != nullptr) normalize(cut(x, from, end), *norm, h);
               product(norm != nullptr ? read_only(h) : cut(x, from, end), in, epilogue(in), p);
               conv.block(p, from, begin, end, memory + normed + projected, product.threads);
             });
}

void add_tiles(const TileView& z, const Dense& out, Rows residual, int threads) {
  const std::int64_t D = out.weight->in_features(), most = std::min(residual.rows, kBlock);
  for_blocks(residual.rows, scratch_size(most, D), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const Rows y = scratch_rows(memory, end - begin, D), into = cut(residual, begin, end);
               tiles_to_rows({z.data + begin * kTile, z.groups, end - begin, z.stride}, y, 1);
               Epilogue e = epilogue(out);
               e.residual = read_only(into);
               product(read_only(y), out, e, into);
             });
}

void add_mlp(Rows x, const Norm& norm, const Dense& up, Wide act, const Dense& down, int threads) {
  const std::int64_t D = x.cols, W = up.weight->out_features(), F = down.weight->in_features();
  const std::int64_t most = std::min(x.rows, kBlock);
  const Activation inner = act == Wide::gelu_tanh  ? Activation::gelu_tanh
                           : act == Wide::gelu_erf ? Activation::gelu_erf
                                                   : Activation::none;
  for_blocks(x.rows, scratch_size(most, D) + scratch_size(most, W) + scratch_size(most, F), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const std::int64_t n = end - begin;
               const Rows rows = cut(x, begin, end), h = scratch_rows(memory, n, D);
               Rows u = scratch_rows(memory + scratch_size(most, D), n, W);
               normalize(read_only(rows), norm, h);
               product(read_only(h), up, epilogue(up, inner), u);
               if (act == Wide::swiglu) {
                 const Rows gated = scratch_rows(memory + scratch_size(most, D) + scratch_size(most, W), n, F);
                 gate(Gate::swiglu, read_only(u), gated, 1);
                 u = gated;
               }
               Epilogue e = epilogue(down);
               e.residual = read_only(rows);
               product(read_only(u), down, e, rows);
             });
}

}  // namespace hyena
