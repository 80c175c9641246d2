#include "linear.hpp"

#include <algorithm>

#include "pairs.hpp"
#include "pairtiles.hpp"
#include "parallel.hpp"
#include "tile.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kRows = 144;   // rows of x worked at once at most; a multiple of every tile's
constexpr std::int64_t kGroup = 8;    // panels whose sums are kept from one block of K to the next
constexpr std::int64_t kDepth = 256;  // of a block of K, in words: it makes a panel 32 KiB on AVX-512, 16 on AVX2
constexpr int kCopied = kDepth + 16;  // distance of copied rows; a power of two would fall on few cache sets
constexpr std::int64_t kDepthOfOne = 1 << 14;  // one row uses every weight once, so a panel is read from end to end
constexpr std::int64_t kSums = kGroup * kPanel + 16;  // distance of rows of sums
constexpr std::int64_t kWorth = 1 << 19;              // multiply-adds that pay for waking a thread (20-25 us)

std::int64_t blocks_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
std::int64_t round_up(std::int64_t n, std::int64_t to) { return blocks_of(n, to) * to; }

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

/// Tiles of few rows take several panels at once: an fma takes 4 cycles, two begin in each, so 8
/// chains have to run side by side.
int panels_at_once(std::int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <class Words>
void multiply(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, std::int64_t rows, int panels,
              float* c, bool add) {
  static constexpr auto one = by_rows<OnePanel<Words>::template Of>();
  static constexpr TileCall several[] = {&tile<Words, 1, 4>, &tile<Words, 2, 2>, &tile<Words, 3, 2>};
  (panels == 1 ? one[rows - 1] : several[rows - 1])(a, b, b_panel, depth, c, add);
}

void multiply_pair_tiles(const float* a, const float* b, std::int64_t, std::int64_t depth, std::int64_t rows, int,
                         float* c, bool add) {
  pair_tile_product(a, kCopied, b, depth, rows, c, kSums, add);
}

template <class Words>
void copy_words(const float* x, std::int64_t K, std::int64_t from, std::int64_t count, float* to) {
  constexpr int n = Words::kNumbers;
  Words::copy(x + n * from, std::min(n * count, K - n * from), to);
}

/// And zeros up to a whole tile.
void copy_pair_tiles(const float* x, std::int64_t K, std::int64_t from, std::int64_t count, float* to) {
  copy_words<HardwarePairs>(x, K, from, count, to);
  std::fill(to + count, to + round_up(count, kPairTile), 0.0f);
}

/// How one kind of numbers is multiplied.
struct Format {
  std::int64_t rows, step;  // of a tile: at most, and what it costs the same up to
  int (*panels_at_once)(std::int64_t rows);
  /// Words [from, from + count) of x [K].
  void (*copy)(const float* x, std::int64_t K, std::int64_t from, std::int64_t count, float* to);
  /// c [rows][panels * kPanel] = (add ? c : 0) + a [rows][depth] b, with rows kCopied and kSums apart.
  void (*multiply)(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, std::int64_t rows,
                   int panels, float* c, bool add);
  void (*begin)();
  void (*end)();
};

template <class Words>
constexpr Format kFormat{kTileRows, kTileRows, &panels_at_once, &copy_words<Words>, &multiply<Words>, [] {}, [] {}};
constexpr Format kPairTileFormat{
    2 * kPairTile,     kPairTile,      [](std::int64_t) { return 1; }, &copy_pair_tiles, &multiply_pair_tiles,
    &begin_pair_tiles, &end_pair_tiles};

const Format& format_of(const PackedLinear& weight) {
  if (weight.numbers() == Numbers::float32) return kFormat<FloatWords>;
  if (kPairTiles) return kPairTileFormat;
  return multiplies_pairs() ? kFormat<HardwarePairs> : kFormat<WidenedPairs>;
}

/// Pieces of [rows] x [panels], and K in blocks, by shape alone.
struct Cut {
  std::int64_t rows, row_blocks, panels, panel_blocks, depth;
  std::int64_t pieces() const { return row_blocks * panel_blocks; }
  /// Floats of the copied rows, and of all that a piece works in.
  std::int64_t copied() const { return rows == 1 ? depth : round_up(rows, kPairTile) * kCopied; }
  std::int64_t memory() const { return copied() + (rows == 1 ? 1 : round_up(rows, kPairTile)) * kSums; }

  Cut(std::int64_t T, const PackedLinear& w, const Format& format) {
    row_blocks = blocks_of(T, kRows);
    rows = std::min(T, round_up(blocks_of(T, row_blocks), format.step));
    row_blocks = blocks_of(T, rows);
    const std::int64_t worth = blocks_of(kWorth, rows * w.in_features() * kPanel);
    panels = round_up(worth, kGroup);
    panel_blocks = blocks_of(w.panels(), panels);
    depth = round_up(blocks_of(w.words(), blocks_of(w.words(), rows == 1 ? kDepthOfOne : kDepth)), kPairTile);
  }
};

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

class Product {
 public:
  Product(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y)
      : x_(x),
        weight_(weight),
        epilogue_(epilogue),
        y_(y),
        format_(format_of(weight)),
        cut_(x.rows, weight, format_),
        finish_(finish_call(epilogue.activation)) {}

  const Cut& cut() const { return cut_; }

  void piece(std::int64_t index, float* scratch) const {
    const std::int64_t begin = index / cut_.row_blocks * cut_.panels;
    block(index % cut_.row_blocks, begin, std::min(begin + cut_.panels, weight_.panels()), scratch);
  }

  /// Panels [begin, end) for all rows.
  void panels(std::int64_t begin, std::int64_t end, float* scratch) const {
    for (std::int64_t index = 0; index < cut_.row_blocks; index++) block(index, begin, end, scratch);
  }

 private:
  /// Panels [begin, end) for the block of rows with this number. Where K is one block, they share one copy of
  /// the rows, and no sums are kept.
  void block(std::int64_t index, std::int64_t begin, std::int64_t end, float* scratch) const {
    const std::int64_t row = index * cut_.rows, rows = std::min(cut_.rows, x_.rows - row);
    const std::int64_t together = weight_.words() <= cut_.depth ? end - begin : kGroup;
    format_.begin();
    for (std::int64_t p = begin; p < end; p += together) group(row, rows, p, std::min(together, end - p), scratch);
    format_.end();
  }

  /// One block of rows times some panels; scratch has copied [rows][kCopied] and sums [rows][kSums].
  void group(std::int64_t row, std::int64_t rows, std::int64_t panel, std::int64_t panels, float* scratch) const {
    float *const copied = scratch, *const sums = scratch + cut_.copied();
    const std::int64_t words = weight_.words();
    const bool as_it_is = rows == 1 && weight_.numbers() == Numbers::float32;
    const int most = format_.panels_at_once(rows);
    for (std::int64_t k = 0; k < words; k += cut_.depth) {
      const std::int64_t depth = std::min(cut_.depth, words - k);
      const float* const a = as_it_is ? x_.row(row) + k : copied;
      for (std::int64_t r = 0; r < rows && !as_it_is; r++)
        format_.copy(x_.row(row + r), x_.cols, k, depth, copied + r * kCopied);
      for (std::int64_t p = 0; p < panels;) {
        const int wide = p + most <= panels ? most : 1;
        const float* b = weight_.panel(panel + p) + k * kPanel;
        for (std::int64_t r = 0; r < rows; r += format_.rows) {
          const std::int64_t height = std::min(format_.rows, rows - r);
          float* c = sums + r * kSums + p % kGroup * kPanel;
          format_.multiply(a + r * kCopied, b, words * kPanel, depth, height, wide, c, k > 0);
          if (k + depth < words) continue;
          for (int i = 0; i < wide; i++)
            finish_(c + i * kPanel, epilogue_, y_, row + r, height, (panel + p + i) * kPanel);
        }
        p += wide;
      }
    }
  }

  const ConstRows x_;
  const PackedLinear& weight_;
  const Epilogue& epilogue_;
  const Rows y_;
  const Format& format_;
  const Cut cut_;
  const FinishCall finish_;
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
  const Product product(x, weight, epilogue, y);
  const std::int64_t pieces = product.cut().pieces(), share = product.cut().memory();
  const auto scratch = aligned_array<float>(workers(pieces, threads) * share);
  parallel_for(pieces, threads,
               [&](std::int64_t piece, int worker) { product.piece(piece, scratch.get() + worker * share); });
}

void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, float* scratch) noexcept {
  linear_panels(x, weight, epilogue, y, 0, weight.panels(), scratch);
}

void linear_panels(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, std::int64_t begin,
                   std::int64_t end, float* scratch) noexcept {
  if (x.rows > 0) Product(x, weight, epilogue, y).panels(begin, end, scratch);
}

std::int64_t linear_scratch() { return std::max(kRows * kCopied, kDepthOfOne) + kRows * kSums; }

}  // namespace hyena
