#include "tokenwise.hpp"

#include <algorithm>

#include "aligned.hpp"
#include "format.hpp"
#include "parallel.hpp"
#include "sizes.hpp"

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

/// A copy where there is no norm.
void normalize(ConstRows x, const Norm* norm, Rows y) {
  if (norm != nullptr) return normalize(x, *norm, y);
  for (std::int64_t t = 0; t < x.rows; t++) std::copy_n(x.row(t), x.cols, y.row(t));
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
  const std::int64_t blocks = pieces_of(rows, kBlock);
  const std::int64_t products = linear_scratch(), own_floats = products + whole_lines(share);
  const auto memory = aligned_array<float>(workers(blocks, threads) * own_floats);
  if (blocks <= 1) {
    f(std::int64_t{0}, rows, memory.get() + products, Products{threads, memory.get()});
    return;
  }
  parallel_for(blocks, threads, [&](std::int64_t block, int worker) {
    float* own = memory.get() + worker * own_floats;
    f(block * kBlock, std::min((block + 1) * kBlock, rows), own + products, Products{1, own});
  });
}

TileView cut(const TileView& z, std::int64_t begin, std::int64_t end) {
  return {z.data == nullptr ? nullptr : z.data + begin * kTile, z.groups, end - begin, z.stride};
}

/// Outputs of a projection, as they lie in its panels: `before` others come first.
struct Outputs {
  PackedLinear weight;
  const float* bias;
  std::int64_t before;

  Outputs(const Dense& whole, std::int64_t first, std::int64_t count)
      : weight(whole.weight->part(first / kPanel, first % kPanel + count)),
        bias(whole.bias == nullptr ? nullptr : whole.bias + first / kPanel * kPanel),
        before(first % kPanel) {}

  /// Floats of the memory that `project` works in.
  std::int64_t memory(std::int64_t rows) const { return scratch_size(rows, weight.out_features()); }
  Rows project(ConstRows x, float* memory, const Products& product) const {
    const Dense dense{&weight, bias};
    const Rows all = scratch_rows(memory, x.rows, weight.out_features());
    product(x, dense, epilogue(dense), all);
    return {all.data + before, all.rows, all.cols - before, all.stride};
  }
};

/// Short convolution of projected rows, sequence by sequence, with what came before each.
class TailedConv {
 public:
  TailedConv(const ShortConv& job, const Sequences& sequences, Rows tails)
      : C_(job.taps.cols), before_(job.taps.rows - 1), sequences_(sequences), tails_(tails) {
    if (tails.data == nullptr) return;
    old_ = aligned_array<float>(tails.rows * C_);
    for (std::int64_t i = 0; i < tails.rows; i++) std::copy_n(tails.row(i), C_, old_.get() + i * C_);
  }

  std::int64_t before() const { return before_; }
  /// Floats of the memory that `block` works in.
  std::int64_t memory() const { return before_ * C_; }

  /// job.out and job.product of rows [begin, end), of which job.x holds the projected rows from `from` on.
  void block(const ShortConv& job, std::int64_t from, std::int64_t begin, std::int64_t end, float* memory,
             int threads) const {
    const std::int64_t* const offsets = sequences_.offsets;
    std::int64_t b = std::upper_bound(offsets, offsets + sequences_.count + 1, begin) - offsets - 1;
    for (std::int64_t t = begin; t < end; b++) {
      const std::int64_t stop = std::min(end, offsets[b + 1]);
      const Rows tail{memory, before_, C_, C_};
      copy_tail(job.x, from, b, t, tail);
      ShortConv own = job;
      own.tail = read_only(tail);
      own.x = cut(job.x, t - from, stop - from);
      own.out = cut(job.out, t - begin, stop - begin);
      own.product = cut(job.product, t - begin, stop - begin);
      short_conv(own, threads);
      if (stop == offsets[b + 1] && tails_.data != nullptr)
        copy_tail(job.x, from, b, stop, cut(tails_, b * before_, (b + 1) * before_));
      t = stop;
    }
  }

 private:
  /// The rows of sequence b that end before row t.
  void copy_tail(ConstRows p, std::int64_t from, std::int64_t b, std::int64_t t, Rows to) const {
    const std::int64_t first = sequences_.offsets[b];
    for (std::int64_t i = 0; i < before_; i++) {
      const std::int64_t at = t - before_ + i;
      if (at >= first)
        std::copy_n(p.row(at - from), C_, to.row(i));
      else if (old_ != nullptr)
        std::copy_n(old_.get() + (b * before_ + at - first + before_) * C_, C_, to.row(i));
      else
        std::fill_n(to.row(i), C_, 0.0f);
    }
  }

  const std::int64_t C_, before_;
  const Sequences& sequences_;
  const Rows tails_;
  AlignedArray<float> old_;
};

/// Copies of the rows before every block but the first, for work that changes x meanwhile.
class RowsBefore {
 public:
  RowsBefore(Rows x, std::int64_t before) : before_(before), cols_(x.cols) {
    const std::int64_t later = (x.rows - 1) / kBlock;
    copies_ = aligned_array<float>(later * before * cols_);
    for (std::int64_t b = 1; b <= later; b++) {
      const Rows to = of(b * kBlock);
      for (std::int64_t i = 0; i < to.rows; i++) std::copy_n(x.row(b * kBlock - to.rows + i), cols_, to.row(i));
    }
  }
  /// Those before row `begin`, `before` or as many as there are.
  Rows of(std::int64_t begin) const {
    return {copies_.get() + (begin / kBlock - 1) * before_ * cols_, std::min(begin, before_), cols_, cols_};
  }

 private:
  const std::int64_t before_, cols_;
  AlignedArray<float> copies_;
};

}  // namespace

void project_conv(ConstRows x, const Norm* norm, const Dense& in, const ShortConv& job, const Sequences& sequences,
                  Rows tails, int threads) {
  const std::int64_t D = x.cols, C = job.taps.cols;
  const Outputs outputs(in, in.weight->out_features() - C, C);
  const TailedConv conv(job, sequences, tails);
  // A block projects the rows before it, which its first outputs need, again: cheaper than waiting.
  const std::int64_t most = std::min(x.rows, kBlock + conv.before());
  const std::int64_t normed = scratch_size(most, D), projected = outputs.memory(most);
  for_blocks(x.rows, normed + projected + conv.memory(), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const std::int64_t from = std::max<std::int64_t>(0, begin - conv.before());
               const Rows h = scratch_rows(memory, end - from, D);
               normalize(cut(x, from, end), norm, h);
               ShortConv own = job;
               own.x = read_only(outputs.project(read_only(h), memory + normed, product));
               own.out = cut(job.out, begin, end);
               own.product = cut(job.product, begin, end);
               conv.block(own, from, begin, end, memory + normed + projected, product.threads);
             });
}

void add_tiles(const TileView& z, const Dense& out, Rows residual, int threads) {
  const std::int64_t D = out.weight->in_features(), most = std::min(residual.rows, kBlock);
  for_blocks(residual.rows, scratch_size(most, D), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const Rows y = scratch_rows(memory, end - begin, D), into = cut(residual, begin, end);
               tiles_to_rows(cut(z, begin, end), y, 1);
               Epilogue e = epilogue(out);
               e.residual = read_only(into);
               product(read_only(y), out, e, into);
             });
}

void add_gated_tiles(Rows x, const Norm* norm, const Dense& in, const ShortConv& job, const Sequences& sequences,
                     Rows tails, const TileView& z, const Dense& out, int threads) {
  const std::int64_t D = x.cols, W = job.taps.cols;
  const Outputs outputs(in, 0, W);
  const TailedConv conv(job, sequences, tails);
  const RowsBefore earlier(x, conv.before());
  const std::int64_t most = std::min(x.rows, kBlock + conv.before());
  const std::int64_t rows = scratch_size(most, std::max(D, W)), projected = outputs.memory(most);
  const std::int64_t gates = z.groups * kTile * std::min(x.rows, kBlock);
  for_blocks(x.rows, rows + projected + gates + conv.memory(), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const std::int64_t n = end - begin, from = std::max<std::int64_t>(0, begin - conv.before());
               const Rows into = cut(x, begin, end), h = scratch_rows(memory, end - from, D);
               if (from < begin) normalize(read_only(earlier.of(begin)), norm, cut(h, 0, begin - from));
               normalize(read_only(into), norm, cut(h, begin - from, end - from));
               ShortConv own = job;
               own.x = read_only(outputs.project(read_only(h), memory + rows, product));
               own.out = {memory + rows + projected, z.groups, n, n * kTile};
               conv.block(own, from, begin, end, memory + rows + projected + gates, product.threads);
               const Rows y = scratch_rows(memory, n, W);
               multiply_tiles(own.out, cut(z, begin, end), own.out, 1);
               tiles_to_rows(own.out, y, 1);
               Epilogue e = epilogue(out);
               e.residual = read_only(into);
               product(read_only(y), out, e, into);
             });
}

void add_mlp(Rows x, const Norm& norm, const Dense& up, Wide act, const Dense& down, int threads) {
  const std::int64_t D = x.cols, W = up.weight->out_features(), F = down.weight->in_features();
  const std::int64_t most = std::min(x.rows, kBlock);
  for_blocks(x.rows, scratch_size(most, D) + scratch_size(most, W) + scratch_size(most, F), threads,
             [&](std::int64_t begin, std::int64_t end, float* memory, const Products& product) {
               const std::int64_t n = end - begin;
               const Rows rows = cut(x, begin, end), h = scratch_rows(memory, n, D);
               Rows u = scratch_rows(memory + scratch_size(most, D), n, W);
               normalize(read_only(rows), norm, h);
               product(read_only(h), up, epilogue(up, inner_activation(act)), u);
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
