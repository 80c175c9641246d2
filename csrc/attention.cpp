#include "attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "aligned.hpp"
#include "parallel.hpp"
#include "sizes.hpp"
#include "tile.hpp"
#include "tiles.hpp"

// The softmax is taken online (Milakov and Gimelshein, arXiv 1805.02867) over blocks of slots
// that begin at multiples of kBlock, whichever query asks: every sum of a query has an order
// fixed by slot numbers. Slots outside a query's span get weight zero and their values are not
// read for it, so that neither garbage nor a later token's infinity reaches it.

namespace hyena {
namespace {

constexpr int kBlock = 128;               // slots of a softmax step
constexpr std::int64_t kQueries = 48;     // of a piece; a multiple of every kTileRows
constexpr std::int64_t kWorth = 1 << 18;  // multiply-adds that pay for waking a thread (20-25 us)
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// A tile of scores takes kGroupV vectors of a row of keys (the row of 16 or, with 4 lanes, half of
// it) from kGroups rows at once, as many as the registers hold beside R queries.
constexpr int kGroupV = kLanes == 16 ? 1 : 2;
constexpr std::int64_t kGroupCols = kGroupV * kLanes;
constexpr int groups_at_once(int queries) {
  if (kLanes == 4) return 1;
  if (queries == 1) return 4;
  return kLanes == 16 ? 2 : 1;
}

/// e^x, zero below -87: also of -inf, the score of a slot that is not seen.
inline vf weight_of(vf x) {
  const vf y = exp<kLanes>(x);
  return x < splat(-87.0f) ? vf{} : y;
}

/// One worker's memory.
struct Scratch {
  float* q;             // [strips][hd][rows of the strip], scaled
  float* sum;           // [kQueries][width] weighted values, width a multiple of kLanes
  float* values;        // [kBlock][width], used only where hd is no multiple of kLanes
  float* scores;        // [kTileRows][kBlock]
  float *peak, *total;  // [kQueries] running maximum and sum of weights

  static std::array<std::int64_t, 6> sizes(std::int64_t hd) {
    const std::int64_t width = round_up(hd, kLanes);
    return {kQueries * (round_up(hd, 16)),
            kQueries * width,
            width == hd ? 0 : kBlock * width,
            kTileRows * kBlock,
            kQueries,
            kQueries};
  }
  /// In attend_scratch(hd) floats.
  Scratch(std::int64_t hd, float* memory) {
    float** const parts[] = {&q, &sum, &values, &scores, &peak, &total};
    for (std::size_t i = 0; i < 6; i++) {
      *parts[i] = memory;
      memory += sizes(hd)[i];
    }
  }
};

struct Head {
  const float *keys, *values;
  std::int64_t hd, width;  // width: hd rounded up to kLanes
};

/// A strip of rows of queries against the slots of one block.
struct Strip {
  std::int64_t query, rows;  // first query, count
  float *q, *sum, *peak, *total;
};

/// scores[r][c] for c in [from, to) of the block at slot `base`; from and to multiples of 16.
template <int R>
struct Score {
  static void call(const float* q, const Head& head, std::int64_t base, std::int64_t from, std::int64_t to, float* s) {
    constexpr int P = groups_at_once(R);
    std::int64_t c = from;
    const auto keys = [&](std::int64_t col) {
      const std::int64_t slot = base + col;
      return head.keys + slot / kTile * head.hd * kTile + slot % kTile;
    };
    const std::int64_t panel = head.hd * kTile;
    if constexpr (P > 1)
      for (; c + P * kGroupCols <= to; c += P * kGroupCols)
        tile_product<R, kGroupV, P, 1, R>(q, keys(c), kTile, panel, head.hd, s + c, kBlock, false);
    for (; c < to; c += kGroupCols)
      tile_product<R, kGroupV, 1, 1, R>(q, keys(c), kTile, panel, head.hd, s + c, kBlock, false);
  }
};

/// sum[r] += weights[r][j] values[j] for j in [from, to), one chain of fma over j per element.
template <int R>
struct Weigh {
  static void call(const float* weights, const float* values, std::int64_t width, std::int64_t from, std::int64_t to,
                   float* sum) {
    if (from >= to) return;
    const float* w = weights + from;
    const float* v = values + from * width;
    std::int64_t c = 0;
    if constexpr (R == 1)
      for (; c + 4 * kLanes <= width; c += 4 * kLanes)
        tile_product<1, 4, 1, kBlock, 1>(w, v + c, width, 0, to - from, sum + c, width, true);
    for (; c + 2 * kLanes <= width; c += 2 * kLanes)
      tile_product<R, 2, 1, kBlock, 1>(w, v + c, width, 0, to - from, sum + c, width, true);
    if (c < width) tile_product<R, 1, 1, kBlock, 1>(w, v + c, width, 0, to - from, sum + c, width, true);
  }
};

constexpr auto kScore = by_rows<Score>();
constexpr auto kWeigh = by_rows<Weigh>();

/// Scores s[from..to) become weights; those outside [low, end) zero. Updates the running maximum
/// and total and rescales the sum [width] to the new maximum.
void soften(float* s, std::int64_t from, std::int64_t to, std::int64_t low, std::int64_t end, float& peak, float& total,
            float* sum, std::int64_t width) {
  vf top = splat(kMinusInf);
  for (std::int64_t c = from; c < to; c += kLanes) {
    vf v = load(s + c);
    if (c < low || c + kLanes > end) {
      for (int i = 0; i < kLanes; i++)
        if (c + i < low || c + i >= end) v[i] = kMinusInf;
      store(s + c, v);
    }
    top = max<kLanes>(v, top);
  }
  const float before = peak;
  peak = std::max(peak, max_lane<kLanes>(top));
  vf added{};
  for (std::int64_t c = from; c < to; c += kLanes) {
    const vf w = weight_of(load(s + c) - splat(peak));
    store(s + c, w);
    added += w;
  }
  const vf scale = weight_of(splat(before) - splat(peak));
  total = total * scale[0] + hyena::sum<kLanes>(added);
  if (scale[0] == 1.0f) return;
  for (std::int64_t c = 0; c < width; c += kLanes) store(sum + c, load(sum + c) * scale);
}

/// One strip of queries against the block of slots at `base`; values [kBlock][width] of the block.
void strip_block(const Head& head, const Span& span, const Strip& strip, std::int64_t base, const float* values,
                 float* scores) {
  const auto low = [&](std::int64_t r) { return std::max<std::int64_t>(span.low(strip.query + r) - base, 0); };
  const auto end = [&](std::int64_t r) { return std::min<std::int64_t>(span.end(strip.query + r) - base, kBlock); };
  // Spans only move up, so the queries that see something of the block follow one another.
  std::int64_t first = 0, last = strip.rows - 1;
  while (first <= last && end(first) <= 0) first++;
  while (first <= last && low(last) >= kBlock) last--;
  if (first > last) return;
  const std::int64_t from = low(first) / kTile * kTile, to = round_up(end(last), kTile);
  kScore[strip.rows - 1](strip.q, head, base, from, to, scores);
  for (std::int64_t r = first; r <= last; r++)
    soften(scores + r * kBlock, from, to, low(r), end(r), strip.peak[r], strip.total[r], strip.sum + r * head.width,
           head.width);
  // Slots that all of them see go through the tile; what a query sees before and after, alone.
  const std::int64_t shared_low = low(last), shared_end = std::max(end(first), shared_low);
  const auto alone = [&](std::int64_t r, std::int64_t j0, std::int64_t j1) {
    Weigh<1>::call(scores + r * kBlock, values, head.width, j0, j1, strip.sum + r * head.width);
  };
  for (std::int64_t r = first; r <= last; r++) alone(r, low(r), std::min(end(r), shared_low));
  kWeigh[last - first](scores + first * kBlock, values, head.width, shared_low, shared_end,
                       strip.sum + first * head.width);
  for (std::int64_t r = first; r <= last; r++) alone(r, std::max(low(r), shared_end), end(r));
}

/// Copies the values of slots [from, to) of the block at `base` to rows of whole vectors.
void pad_values(const Head& head, std::int64_t base, std::int64_t from, std::int64_t to, float* padded) {
  for (std::int64_t j = from; j < to; j++) {
    std::copy_n(head.values + (base + j) * head.hd, head.hd, padded + j * head.width);
    std::fill_n(padded + j * head.width + head.hd, head.width - head.hd, 0.0f);
  }
}

/// Queries [begin, begin + count) of one head, at most kQueries.
void piece(const Head& head, const Span& span, ConstRows q, std::int64_t column, std::int64_t begin, std::int64_t count,
           Rows y, const Scratch& scratch) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head.hd));
  Strip strips[kQueries / kTileRows];
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; i += kTileRows, n++) {
    const std::int64_t rows = std::min<std::int64_t>(kTileRows, count - i);
    strips[n] = {begin + i,        rows, scratch.q + i * head.hd, scratch.sum + i * head.width, scratch.peak + i,
                 scratch.total + i};
    for (std::int64_t r = 0; r < rows; r++)
      for (std::int64_t d = 0; d < head.hd; d++) strips[n].q[d * rows + r] = q.row(begin + i + r)[column + d] * scale;
  }
  std::fill_n(scratch.sum, count * head.width, 0.0f);
  std::fill_n(scratch.peak, count, kMinusInf);
  std::fill_n(scratch.total, count, 0.0f);

  const std::int64_t low = span.low(begin), end = span.end(begin + count - 1);
  for (std::int64_t base = low / kBlock * kBlock; base < end; base += kBlock) {
    const float* values = head.values + base * head.hd;
    if (head.width != head.hd) {
      pad_values(head, base, std::max<std::int64_t>(low - base, 0), std::min<std::int64_t>(end - base, kBlock),
                 scratch.values);
      values = scratch.values;
    }
    for (std::int64_t i = 0; i < n; i++) strip_block(head, span, strips[i], base, values, scratch.scores);
  }
  for (std::int64_t i = 0; i < count; i++)
    for (std::int64_t d = 0; d < head.hd; d++)
      y.row(begin + i)[column + d] = scratch.sum[i * head.width + d] / scratch.total[i];
}

}  // namespace

void kv_append(CacheOf<float> cache, ConstRows k, ConstRows v, std::int64_t at) noexcept {
  const std::int64_t hd = cache.width;
  for (std::int64_t h = 0; h < cache.heads; h++)
    for (std::int64_t i = 0; i < k.rows; i++) {
      const std::int64_t slot = at + i;
      float* keys = cache.head_keys(h) + slot / kTile * hd * kTile + slot % kTile;
      for (std::int64_t d = 0; d < hd; d++) keys[d * kTile] = k.row(i)[h * hd + d];
      std::copy_n(v.row(i) + h * hd, hd, cache.head_values(h) + slot * hd);
    }
}

std::int64_t attend_scratch(std::int64_t width) {
  const auto sizes = Scratch::sizes(width);
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

void attend_head(ConstRows q, CacheOf<const float> cache, Span span, std::int64_t h, Rows y, float* memory) noexcept {
  const std::int64_t hd = cache.width;
  const Head head{cache.head_keys(h), cache.head_values(h), hd, round_up(hd, kLanes)};
  piece(head, span, q, h * hd, 0, q.rows, y, Scratch(hd, memory));
}

void attend(ConstRows q, CacheOf<const float> cache, Span span, Rows y, int threads) {
  if (q.rows == 0) return;
  const std::int64_t hd = cache.width, width = round_up(hd, kLanes);
  const std::int64_t blocks = pieces_of(q.rows, kQueries);
  // Short work is cut into fewer pieces, each of several heads.
  const std::int64_t seen = span.end(q.rows - 1) - span.low(q.rows - 1);
  const std::int64_t work = 2 * hd * seen * std::min(q.rows, kQueries);
  const std::int64_t heads = std::min(cache.heads, pieces_of(kWorth, work));
  const std::int64_t head_pieces = pieces_of(cache.heads, heads);
  const std::int64_t pieces = blocks * head_pieces, share = attend_scratch(hd);
  const auto memory = aligned_array<float>(workers(pieces, threads) * share);

  parallel_for(pieces, threads, [&](std::int64_t index, int worker) {
    const Scratch scratch(hd, memory.get() + worker * share);
    // The last queries see most and go first, so that the threads end together.
    const std::int64_t begin = (blocks - 1 - index / head_pieces) * kQueries;
    const std::int64_t count = std::min(kQueries, q.rows - begin);
    const std::int64_t h0 = index % head_pieces * heads;
    for (std::int64_t h = h0; h < std::min(h0 + heads, cache.heads); h++)
      piece({cache.head_keys(h), cache.head_values(h), hd, width}, span, q, h * hd, begin, count, y, scratch);
  });
}

}  // namespace hyena
