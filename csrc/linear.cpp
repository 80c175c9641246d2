#include "linear.hpp"

#include <algorithm>

#include "pairs.hpp"
#include "parallel.hpp"
#include "tile.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kRows = 132;   // rows of x worked at once at most; a multiple of every kTileRows
constexpr std::int64_t kGroup = 8;    // panels that share one copy of those rows: copying costs a few percent
constexpr std::int64_t kDepth = 256;  // of a block of K, in words: it makes a panel 32 KiB on AVX-512, 16 on AVX2
constexpr int kCopied = kDepth + 16;  // distance of copied rows; a power of two would fall on few cache sets
constexpr std::int64_t kDepthOfOne = 1 << 14;  // one row uses every weight once, so a panel is read from end to end
constexpr std::int64_t kSums = kGroup * kPanel + 16;  // distance of rows of sums
constexpr std::int64_t kWorth = 1 << 19;              // multiply-adds that pay for waking a thread (20-25 us)

std::int64_t blocks_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// Pieces of [rows] x [panels], and K in blocks, by shape alone.
struct Cut {
  std::int64_t rows, row_blocks, panels, panel_blocks, depth;
  std::int64_t pieces() const { return row_blocks * panel_blocks; }
  /// Floats of the copied rows, and of all that a piece works in.
  std::int64_t copied() const { return rows == 1 ? blocks_of(depth, 16) * 16 : rows * kCopied; }
  std::int64_t memory() const { return copied() + rows * kSums; }

  Cut(std::int64_t T, const PackedLinear& w) {
    row_blocks = blocks_of(T, kRows);
    rows = std::min(T, blocks_of(blocks_of(T, row_blocks), kTileRows) * kTileRows);
    row_blocks = blocks_of(T, rows);
    const std::int64_t worth = blocks_of(kWorth, rows * w.in_features() * kPanel);
    panels = blocks_of(worth, kGroup) * kGroup;
    panel_blocks = blocks_of(w.panels(), panels);
    depth = blocks_of(w.words(), blocks_of(w.words(), rows == 1 ? kDepthOfOne : kDepth));
  }
};

using TileCall = void (*)(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, float* c, bool add);

template <class Words, int R, int P>
void tile(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, float* c, bool add) {
  tile_product<R, 2, P, kCopied, 1, Words>(a, b, kPanel, b_panel, depth, c, kSums, add);
}
template <class Words>
struct OnePanel {
  template <int R>
  struct Of {
    static constexpr TileCall call = &tile<Words, R, 1>;
  };
};

/// How one kind of numbers is multiplied.
struct Format {
  std::array<TileCall, kTileRows> one;  // panel, by rows
  std::array<TileCall, 3> several;      // panels_at_once(rows), by rows
  /// Words [from, from + count) of x [K].
  void (*copy)(const float* x, std::int64_t K, std::int64_t from, std::int64_t count, float* to);

  TileCall call(std::int64_t rows, int panels) const { return panels == 1 ? one[rows - 1] : several[rows - 1]; }
};

template <class Words>
void copy_words(const float* x, std::int64_t K, std::int64_t from, std::int64_t count, float* to) {
  constexpr int n = Words::kNumbers;
  Words::copy(x + n * from, std::min(n * count, K - n * from), to);
}

template <class Words>
constexpr Format kFormat{by_rows<OnePanel<Words>::template Of>(),
                         {&tile<Words, 1, 4>, &tile<Words, 2, 2>, &tile<Words, 3, 2>},
                         &copy_words<Words>};

const Format& format_of(const PackedLinear& weight) {
  if (weight.numbers() == Numbers::float32) return kFormat<FloatWords>;
  return multiplies_pairs() ? kFormat<HardwarePairs> : kFormat<WidenedPairs>;
}

/// Tiles of few rows take several panels at once: an fma takes 4 cycles, two begin in each, so 8
/// chains have to run side by side.
int panels_at_once(std::int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

/// Sums [rows, n] of one panel become y[row.., column..] = act(sums + bias) + residual.
template <Activation A>
void finish(const float* sums, const Epilogue& e, Rows y, std::int64_t row, std::int64_t rows, std::int64_t column) {
  for (std::int64_t c = 0; c < kPanel && column + c < y.cols; c += kLanes) {
    const std::int64_t n = std::min<std::int64_t>(kLanes, y.cols - column - c);
    const bool whole = n == kLanes;
    const auto read = [=](const float* p) { return whole ? load(p) : load_part(p, n); };
    const vf bias = e.bias ? read(e.bias + column + c) : vf{};
    for (std::int64_t r = 0; r < rows; r++) {
      vf v = load(sums + r * kSums + c);
      if (e.bias) v += bias;
      v = activate<A, kLanes>(v);
      if (e.residual.data) v += read(e.residual.row(row + r) + column + c);
      float* out = y.row(row + r) + column + c;
      whole ? store(out, v) : store_part(out, v, n);
    }
  }
}

using FinishCall = void (*)(const float*, const Epilogue&, Rows, std::int64_t, std::int64_t, std::int64_t);

FinishCall finish_call(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return &finish<Activation::gelu_tanh>;
    case Activation::gelu_erf:
      return &finish<Activation::gelu_erf>;
    case Activation::silu:
      return &finish<Activation::silu>;
    case Activation::none:
      break;
  }
  return &finish<Activation::none>;
}

struct Product {
  ConstRows x;
  const PackedLinear& weight;
  const Epilogue& epilogue;
  Rows y;
  Cut cut;
  FinishCall finish;
  const Format& format;

  /// One block of rows times up to kGroup panels; scratch has copied [rows][kCopied] and sums [rows][kSums].
  void group(std::int64_t row, std::int64_t rows, std::int64_t panel, std::int64_t panels, float* scratch) const {
    float *const copied = scratch, *const sums = scratch + cut.copied();
    const std::int64_t words = weight.words();
    const std::int64_t b_panel = words * kPanel;
    const bool as_it_is = rows == 1 && weight.numbers() == Numbers::float32;
    for (std::int64_t k = 0; k < words; k += cut.depth) {
      const std::int64_t depth = std::min(cut.depth, words - k);
      const float* const a = as_it_is ? x.row(row) + k : copied;
      for (std::int64_t r = 0; r < rows && !as_it_is; r++)
        format.copy(x.row(row + r), x.cols, k, depth, copied + r * kCopied);
      for (std::int64_t p = 0; p < panels;) {
        const int wide = p + panels_at_once(rows) <= panels ? panels_at_once(rows) : 1;
        const float* b = weight.panel(panel + p) + k * kPanel;
        for (std::int64_t r = 0; r < rows; r += kTileRows) {
          const std::int64_t height = std::min<std::int64_t>(kTileRows, rows - r);
          float* c = sums + r * kSums + p * kPanel;
          format.call(height, wide)(a + r * kCopied, b, b_panel, depth, c, k > 0);
          if (k + depth < words) continue;
          for (int i = 0; i < wide; i++) finish(c + i * kPanel, epilogue, y, row + r, height, (panel + p + i) * kPanel);
        }
        p += wide;
      }
    }
  }

  /// Panels [begin, end) for the block of rows with this number.
  void block(std::int64_t index, std::int64_t begin, std::int64_t end, float* scratch) const {
    const std::int64_t row = index * cut.rows, rows = std::min(cut.rows, x.rows - row);
    for (std::int64_t p = begin; p < end; p += kGroup) group(row, rows, p, std::min(kGroup, end - p), scratch);
  }

  void piece(std::int64_t index, float* scratch) const {
    const std::int64_t begin = index / cut.row_blocks * cut.panels;
    block(index % cut.row_blocks, begin, std::min(begin + cut.panels, weight.panels()), scratch);
  }
};

}  // namespace

PackedLinear::PackedLinear(ConstRows weight, Numbers numbers, Shelf* shelf)
    : n_(weight.rows), k_(weight.cols), numbers_(numbers) {
  const std::int64_t floats = panels() * words() * kPanel;
  data_ = shelf == nullptr ? Shelf::block_of(floats) : shelf->take(floats);
  // Squares of 16 words: every row of the weight is read a cache line or two at a time, whatever its stride.
  constexpr std::int64_t kSquare = 16;
  const auto copy = numbers == Numbers::float32 ? &copy_words<FloatWords> : &copy_words<WidenedPairs>;
  for (std::int64_t n0 = 0; n0 < n_; n0 += kPanel) {
    float* panel = data_.get() + n0 * words();
    const std::int64_t columns = std::min(kPanel, n_ - n0);
    for (std::int64_t w0 = 0; w0 < words(); w0 += kSquare) {
      const std::int64_t depth = std::min(kSquare, words() - w0);
      if (columns < kPanel) std::fill_n(panel + w0 * kPanel, depth * kPanel, 0.0f);
      for (std::int64_t n = 0; n < columns; n++) {
        float square[kSquare];
        copy(weight.row(n0 + n), k_, w0, depth, square);
        for (std::int64_t w = 0; w < depth; w++) std::memcpy(panel + (w0 + w) * kPanel + n, square + w, sizeof *square);
      }
    }
  }
}

PackedLinear PackedLinear::part(std::int64_t panel, std::int64_t outputs) const {
  PackedLinear found = *this;
  found.n_ = outputs;
  found.data_ = {data_, data_.get() + panel * words() * kPanel};
  return found;
}

void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, int threads) {
  if (x.rows == 0) return;
  const Cut cut(x.rows, weight);
  const Product product{x, weight, epilogue, y, cut, finish_call(epilogue.activation), format_of(weight)};
  const std::int64_t share = cut.memory();
  const auto scratch = aligned_array<float>(workers(cut.pieces(), threads) * share);
  parallel_for(cut.pieces(), threads,
               [&](std::int64_t piece, int worker) { product.piece(piece, scratch.get() + worker * share); });
}

void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, float* scratch) noexcept {
  if (x.rows == 0) return;
  const Cut cut(x.rows, weight);
  const Product product{x, weight, epilogue, y, cut, finish_call(epilogue.activation), format_of(weight)};
  for (std::int64_t piece = 0; piece < cut.pieces(); piece++) product.piece(piece, scratch);
}

void linear_panels(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, std::int64_t begin,
                   std::int64_t end, float* scratch) noexcept {
  if (x.rows == 0) return;
  const Cut cut(x.rows, weight);
  const Product product{x, weight, epilogue, y, cut, finish_call(epilogue.activation), format_of(weight)};
  for (std::int64_t index = 0; index < cut.row_blocks; index++) product.block(index, begin, end, scratch);
}

std::int64_t linear_scratch() { return std::max(kRows * kCopied, kDepthOfOne) + kRows * kSums; }

}  // namespace hyena
