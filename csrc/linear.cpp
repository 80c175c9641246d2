#include "linear.hpp"

#include <algorithm>

#include "activate.hpp"
#include "format.hpp"
#include "pairwords.hpp"
#include "parallel.hpp"
#include "sizes.hpp"
#include "thirds.hpp"
#include "tile.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kWorth = 1 << 19;  // multiply-adds that pay for waking a thread (20-25 us)

/// Pieces of [rows] x [panels], and K in blocks, by shape alone.
struct Cut {
  std::int64_t rows, row_blocks, panels, panel_blocks, depth;
  std::int64_t copied, memory;  // floats of the copied rows, and of all that a piece works in
  std::int64_t pieces() const { return row_blocks * panel_blocks; }

  Cut(std::int64_t T, const PackedLinear& w, const Format& format) {
    row_blocks = pieces_of(T, kMostRows);
    rows = std::min(T, round_up(pieces_of(T, row_blocks), format.row_unit));
    row_blocks = pieces_of(T, rows);
    const std::int64_t worth = pieces_of(kWorth, rows * w.in_features() * kPanel);
    panels = round_up(worth, kGroup);
    panel_blocks = pieces_of(w.panels(), panels);
    const std::int64_t blocks = pieces_of(w.words(), rows == 1 ? format.depth_of_one : kDepth);
    depth = round_up(pieces_of(w.words(), blocks), format.depth_unit);
    copied = format.copied(rows, depth);
    memory = copied + round_up(rows, kPadded) * kSums;
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
        format_(format_of(weight.numbers())),
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

  /// One block of rows times some panels; scratch has the copied rows and sums [rows][kSums].
  void group(std::int64_t row, std::int64_t rows, std::int64_t panel, std::int64_t panels, float* scratch) const {
    float *const copied = scratch, *const sums = scratch + cut_.copied;
    const ConstRows x{x_.row(row), rows, x_.cols, x_.stride};
    const std::int64_t words = weight_.words();
    const bool as_it_is = rows == 1 && format_.one_as_it_is;
    const int most = format_.panels_at_once(rows);
    for (std::int64_t k = 0; k < words; k += cut_.depth) {
      const std::int64_t depth = std::min(cut_.depth, words - k);
      const float* const a = as_it_is ? x.data + k : copied;
      if (!as_it_is) format_.copy(x, k, depth, copied);
      for (std::int64_t p = 0; p < panels;) {
        const int wide = p + most <= panels ? most : 1;
        const float* const b = weight_.panel(panel + p) + k * format_.word_floats;
        for (std::int64_t r = 0; r < rows; r += format_.rows) {
          const std::int64_t height = std::min(format_.rows, rows - r);
          float* c = sums + r * kSums + p % kGroup * kPanel;
          format_.multiply(a, r, b, weight_.panel_floats(), depth, height, wide, c, k > 0);
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

bool multiplies_thirds() noexcept { return kTileRegisters; }

PackedLinear::PackedLinear(ConstRows weight, Numbers numbers, Shelf* shelf)
    : n_(weight.rows),
      k_(weight.cols),
      numbers_(numbers == Numbers::thirds && !multiplies_thirds() ? Numbers::float32 : numbers),
      panels_(pieces_of(n_, kPanel)),
      panel_floats_(numbers_ == Numbers::thirds ? thirds_of_panel(k_) : words() * kPanel) {
  const std::int64_t floats = panels() * panel_floats();
  data_ = shelf == nullptr ? Shelf::block_of(floats) : shelf->take(floats);
  const bool thirds = numbers_ == Numbers::thirds;
  const auto plain = aligned_array<float>(thirds ? words() * kPanel : 0);
  for (std::int64_t p = 0; p < panels(); p++) {
    float* const to = data_.get() + p * panel_floats();
    pack_panel(weight, p * kPanel, thirds ? plain.get() : to);
    if (thirds) panel_to_thirds(plain.get(), k_, to);
  }
}

void PackedLinear::pack_panel(ConstRows weight, std::int64_t first, float* panel) const {
  // Squares of 16 words: every row of the weight is read a cache line or two at a time, whatever its stride.
  constexpr std::int64_t kSquare = 16;
  const bool pairs = numbers_ == Numbers::bfloat16;
  const int in_word = pairs ? WidenedPairs::kNumbers : FloatWords::kNumbers;
  const auto copy = pairs ? &WidenedPairs::copy : &FloatWords::copy;
  const std::int64_t columns = std::min(kPanel, n_ - first);
  for (std::int64_t w0 = 0; w0 < words(); w0 += kSquare) {
    const std::int64_t depth = std::min(kSquare, words() - w0);
    if (columns < kPanel) std::fill_n(panel + w0 * kPanel, depth * kPanel, 0.0f);
    for (std::int64_t n = 0; n < columns; n++) {
      float square[kSquare];
      copy(weight.row(first + n) + in_word * w0, std::min(in_word * depth, k_ - in_word * w0), square);
      for (std::int64_t w = 0; w < depth; w++) std::memcpy(panel + (w0 + w) * kPanel + n, square + w, sizeof *square);
    }
  }
}

PackedLinear PackedLinear::part(std::int64_t panel, std::int64_t outputs) const {
  PackedLinear found = *this;
  found.n_ = outputs;
  found.panels_ = pieces_of(outputs, kPanel);
  found.data_ = {data_, data_.get() + panel * panel_floats()};
  return found;
}

void linear(ConstRows x, const PackedLinear& weight, const Epilogue& epilogue, Rows y, int threads) {
  if (x.rows == 0) return;
  const Product product(x, weight, epilogue, y);
  const std::int64_t pieces = product.cut().pieces(), share = whole_lines(product.cut().memory);
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

std::int64_t linear_scratch() {
  const Numbers largest = multiplies_thirds() ? Numbers::thirds : Numbers::float32;
  const std::int64_t copied = format_of(largest).copied(kMostRows, kDepth);
  return whole_lines(std::max(copied, kDepthOfOne) + kMostRows * kSums);
}

}  // namespace hyena
