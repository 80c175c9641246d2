#include "step.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "crew.hpp"
#include "rotary.hpp"
#include "scratch.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

ProductOp product(const Dense& dense, Place from, Place to) { return {*dense.weight, dense.bias, from, to}; }

template <class Float>
ConstRows read_only(RowsOf<Float> x) {
  return {x.data, x.rows, x.cols, x.stride};
}

template <class Float>
RowsOf<Float> one_row(RowsOf<Float> x, std::int64_t i, std::int64_t from, std::int64_t cols) {
  return {x.row(i) + from, 1, cols, x.stride};
}

/// Whole cache lines, and never a power of two.
std::int64_t row_distance(std::int64_t cols) { return (tile_groups(cols) + 1) * kTile; }

/// The largest arrays that operations need, for one sequence.
struct Sizes {
  std::int64_t wide = 0, mixed = 0, tiles = 0;  // of all threads together
  std::int64_t source = 0, apart = 0;           // of each
  std::int64_t work = 0;                        // multiply-adds

  void add(const ProductOp& op) {
    const std::int64_t N = op.weight.out_features(), K = op.weight.in_features();
    if (op.to == Place::wide) wide = std::max(wide, N);
    source = std::max(source, K);
    work += N * K;
  }
  void add(const HyenaOp& op) {
    const std::int64_t D = op.taps.cols / (op.order + 1);
    mixed = std::max(mixed, D);
    tiles = std::max(tiles, op.order * tile_groups(D));
    work += D * 64 * op.order;  // see online_conv
  }
  void add(const KeysOp& op) { apart = std::max(apart, 2 * static_cast<std::int64_t>(op.rates.size())); }
  void add(const AttendOp& op) {
    mixed = std::max(mixed, op.heads * op.width);
    apart = std::max(apart, attend_scratch(op.width));
  }
  void add(const AddNormOp&) {}
};

/// One run of a tape.
class Run {
 public:
  Run(const StepTape& tape, const StepBatch& batch, Rows logits, int threads)
      : tape_(tape),
        batch_(batch),
        B_(batch.size()),
        logits_(logits),
        sizes_(sizes(tape)),
        crew_(team(threads)),
        memory_(shared() + crew_.team() * own(), 1) {
    float* at = memory_.of(0);
    const auto take = [&at](std::int64_t floats) { return std::exchange(at, at + floats); };
    residual_ = rows(take(B_ * row_distance(tape.width())), tape.width());
    wide_ = rows(take(B_ * row_distance(sizes_.wide)), sizes_.wide);
    mixed_ = rows(take(B_ * row_distance(sizes_.mixed)), sizes_.mixed);
    tiles_ = take(sizes_.tiles * tile_distance());
    own_ = at;
  }

  void play() {
    for (std::int64_t b = 0; b < B_; b++) embed(b);
    run(crew_, [this](Worker& worker) {
      for (const StepOp& op : tape_.ops) std::visit([&](const auto& one) { play(one, worker); }, op);
    });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static Sizes sizes(const StepTape& tape) {
    Sizes found;
    for (const StepOp& op : tape.ops) std::visit([&](const auto& one) { found.add(one); }, op);
    return found;
  }
  int team(int threads) const {
    std::int64_t work = B_ * sizes_.work;
    for (const CacheSlot& one : batch_.caches) work += 2 * (one.slot - one.start) * one.cache.heads * one.cache.width;
    return workers(work / tape_.worth, threads);
  }
  std::int64_t tile_distance() const { return (B_ | 1) * kTile; }
  std::int64_t shared() const {
    return B_ * (row_distance(tape_.width()) + row_distance(sizes_.wide) + row_distance(sizes_.mixed)) +
           sizes_.tiles * tile_distance();
  }
  std::int64_t own() const { return linear_scratch() + B_ * row_distance(sizes_.source) + row_distance(sizes_.apart); }
  Rows rows(float* data, std::int64_t cols) const { return {data, B_, cols, row_distance(cols)}; }

  float* products(const Worker& worker) const { return own_ + worker.index() * own(); }
  float* source(const Worker& worker) const { return products(worker) + linear_scratch(); }
  float* apart(const Worker& worker) const { return source(worker) + B_ * row_distance(sizes_.source); }

  /// The first `cols` columns.
  Rows at(Place place, std::int64_t cols) const {
    const Rows whole = place == Place::residual ? residual_
                       : place == Place::wide   ? wide_
                       : place == Place::mixed  ? mixed_
                                                : logits_;
    return {whole.data, whole.rows, cols, whole.stride};
  }

  void embed(std::int64_t b) {
    float* const x = residual_.row(b);
    std::copy_n(tape_.embedding.row(batch_.tokens[b]), tape_.width(), x);
    if (tape_.positions.data == nullptr) return;
    const float* const position = tape_.positions.row(batch_.positions[b]);
    for (std::int64_t i = 0; i < tape_.width(); i++) x[i] += position[i];
  }

  void play(const ProductOp& op, Worker& worker) {
    const Rows to = at(op.to, op.weight.out_features());
    Epilogue epilogue;
    epilogue.bias = op.bias;
    epilogue.activation = op.activation;
    if (op.add) epilogue.residual = read_only(to);
    const std::int64_t panels = op.weight.panels(), size = panels_of_piece(panels);
    ConstRows from{};
    worker.each(pieces_of(panels, size), [&](std::int64_t piece) {
      if (from.data == nullptr) from = prepared(op, source(worker));
      const std::int64_t end = std::min(panels, (piece + 1) * size);
      linear_panels(from, op.weight, epilogue, to, piece * size, end, products(worker));
    });
  }

  /// As many as go through a product side by side, unless threads would go without.
  std::int64_t panels_of_piece(std::int64_t panels) const {
    std::int64_t size = B_ <= 4 ? 4 : 8;
    while (crew_.team() > 1 && size > 1 && panels < 2 * size * crew_.team()) size /= 2;
    return size;
  }

  /// What is multiplied. Every thread that takes part makes it: cheaper than to wait for one that does.
  ConstRows prepared(const ProductOp& op, float* memory) const {
    const std::int64_t K = op.weight.in_features();
    const Rows own = rows(memory, K);
    if (op.swiglu) {
      gate(Gate::swiglu, read_only(at(op.from, 2 * K)), own, 1);
      return read_only(own);
    }
    if (op.norm == nullptr) return read_only(at(op.from, K));
    normalize(read_only(at(op.from, K)), *op.norm, own);
    return read_only(own);
  }

  void play(const HyenaOp& op, Worker& worker) {
    worker.each(tile_groups(op.taps.cols / (op.order + 1)), [&](std::int64_t g) {
      try {
        for (std::int64_t b = 0; b < B_; b++) convolve(op, b, g);
      } catch (...) {
        const std::lock_guard<std::mutex> hold(lock_);
        if (!failure_) failure_ = std::current_exception();
      }
    });
  }

  /// Group g of sequence b.
  void convolve(const HyenaOp& op, std::int64_t b, std::int64_t g) {
    const std::int64_t C = op.taps.cols, D = C / (op.order + 1), G = tile_groups(D), first = g * kTile;
    const int lanes = tile_width(D, g);
    ConvTail& tail = *batch_.tails[op.tail * B_ + b];
    std::copy_n(residual_.row(b) + first, lanes, tail.next_input() + first);
    for (std::int64_t from = first; from < C; from += D)
      std::copy_n(wide_.row(b) + from, lanes, tail.next_row() + from);

    const auto tiles = [&](std::int64_t part) {
      return TileView{tiles_ + part * G * tile_distance(), G, B_, tile_distance()};
    };
    const auto row = [b](const TileView& z) { return TileView{z.data + b * kTile, z.groups, 1, z.stride}; };
    const TileView z = tiles(op.order - 1);
    short_conv_group({{tail.next_row(), 1, C, C}, op.taps, op.bias, tail.rows(), op.order + 1, row(tiles(0)), row(z)},
                     g);
    for (std::int64_t o = 0; o < op.order - 1; o++) {
      OnlineState& conv = *batch_.convs[(op.conv + static_cast<std::size_t>(o)) * B_ + b];
      const TileView none{}, pre = o == 0 ? none : tiles(op.order - 1 - o), post = o < op.order - 2 ? none : tiles(0);
      conv.step({z, 0, op.skips[static_cast<std::size_t>(o)], pre, post, none, z}, b, g, conv.position());
    }
    std::copy_n(z.group(g) + b * kTile, lanes, mixed_.row(b) + first);
  }

  void play(const KeysOp& op, Worker& worker) {
    const std::int64_t D = op.heads * op.width;
    worker.each(B_, [&](std::int64_t b) {
      const CacheSlot& own = batch_.caches[op.cache * B_ + b];
      // Queries and keys lie side by side: turned together, every angle is computed once.
      if (!op.rates.empty())
        rotate_row(wide_.row(b), batch_.positions[b], 2 * op.heads, op.width, op.rates, apart(worker));
      const ConstRows wide = read_only(wide_);
      kv_append(own.cache, one_row(wide, b, D, D), one_row(wide, b, 2 * D, D), own.slot);
    });
  }

  void play(const AttendOp& op, Worker& worker) {
    const std::int64_t D = op.heads * op.width;
    worker.each(B_ * op.heads, [&](std::int64_t piece) {
      const std::int64_t b = piece / op.heads;
      const CacheSlot& own = batch_.caches[op.cache * B_ + b];
      const CacheOf<const float> cache{own.cache.keys, own.cache.values, op.heads, own.cache.slots, op.width};
      attend_head(one_row(read_only(wide_), b, 0, D), cache, {own.slot, own.start, op.window}, piece % op.heads,
                  one_row(mixed_, b, 0, D), apart(worker));
    });
  }

  void play(const AddNormOp& op, Worker& worker) {
    worker.each(B_, [&](std::int64_t b) {
      const Rows x = one_row(residual_, b, 0, tape_.width()), normed{source(worker), 1, x.cols, x.cols};
      normalize(read_only(x), *op.norm, normed);
      for (std::int64_t i = 0; i < x.cols; i++) x.data[i] += normed.data[i];
    });
  }

  const StepTape& tape_;
  const StepBatch& batch_;
  const std::int64_t B_;
  const Rows logits_;
  const Sizes sizes_;
  Crew crew_;
  const Scratch memory_;
  Rows residual_, wide_, mixed_;
  float *tiles_, *own_;
  std::mutex lock_;
  std::exception_ptr failure_;
};

}  // namespace

std::int64_t StepTape::logits_width() const { return std::get<ProductOp>(ops.back()).weight.out_features(); }

void StepTape::add_hyena(const Norm* norm, const Dense& in, HyenaOp op, const Dense& out) {
  ProductOp first = product(in, Place::residual, Place::wide), last = product(out, Place::mixed, Place::residual);
  first.norm = norm;
  last.add = true;
  op.tail = tails++;
  op.conv = convs;
  convs += op.skips.size();
  ops.insert(ops.end(), {first, std::move(op), last});
}

void StepTape::add_attention(const Norm* norm, const Dense& qkv, KeysOp keys, std::int64_t window, const Dense& out) {
  ProductOp first = product(qkv, Place::residual, Place::wide), last = product(out, Place::mixed, Place::residual);
  first.norm = norm;
  last.add = true;
  keys.cache = caches++;
  const AttendOp attend{keys.heads, keys.width, window, keys.cache};
  ops.insert(ops.end(), {first, std::move(keys), attend, last});
}

void StepTape::add_mlp(const Norm* norm, const Dense& up, Wide act, const Dense& down) {
  ProductOp first = product(up, Place::residual, Place::wide), last = product(down, Place::wide, Place::residual);
  first.norm = norm;
  first.activation = inner_activation(act);
  last.swiglu = act == Wide::swiglu;
  last.add = true;
  ops.insert(ops.end(), {first, last});
}

void StepTape::add_head(const Norm* norm, const Dense& head) {
  ProductOp last = product(head, Place::residual, Place::logits);
  last.norm = norm;
  ops.emplace_back(std::move(last));
}

void StepTape::run(const StepBatch& batch, Rows logits, int threads) const {
  for (ConvTail* tail : batch.tails) tail->make_room();
  Run(*this, batch, logits, threads).play();
  for (ConvTail* tail : batch.tails) tail->advance();
  for (OnlineState* conv : batch.convs) conv->advance(1);
}

}  // namespace hyena
