#include "scan.hpp"

#include <algorithm>
#include <cmath>

#include "activate.hpp"
#include "aligned.hpp"
#include "parallel.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kBlock = 64;  // tokens: a row of the state is loaded once for so many
constexpr int kRows = LinearScan::kRows;
// Groups that a thread takes a token through: with N = 16 their states are 8 KiB, in a first-level cache.
constexpr std::int64_t kPiece = 8;

/// One head's features, values and outputs of n tokens. What a pass goes through lies together:
/// strides of whole rows would be powers of two, for which a cache has few places.
struct Block {
  float* row;    // [F]
  float *q, *k;  // [F / kRows, kBlock, kRows]
  float *v, *y;  // [C / kLanes, kBlock, kLanes]
  std::int64_t n;

  static std::int64_t size(const LinearScan& job) {
    return job.features() + kBlock * 2 * (job.features() + job.columns());
  }
  Block(const LinearScan& job, float* memory, std::int64_t tokens) : n(tokens) {
    row = memory;
    q = row + job.features();
    k = q + kBlock * job.features();
    v = k + kBlock * job.features();
    y = v + kBlock * job.columns();
  }
};

void taylor(const float* x, std::int64_t width, float* to) {
  const float scale = static_cast<float>(std::pow(static_cast<double>(width), -0.25));
  const float half = static_cast<float>(std::sqrt(0.5));  // a square is met once, a product x_i x_j twice
  *to = 1.0f;
  float* const scaled = to + 1;
  for (std::int64_t i = 0; i < width; i++) scaled[i] = scale * x[i];
  float* pair = scaled + width;
  for (std::int64_t i = 0; i < width; i++) {
    *pair++ = scaled[i] * scaled[i] * half;
    for (std::int64_t j = i + 1; j < width; j++) *pair++ = scaled[i] * scaled[j];
  }
}

/// Features of one token's x into column t of a block's q or k.
void spread(const LinearScan& job, const float* x, std::int64_t t, float* row, float* to) {
  if (job.taylor)
    taylor(x, job.width(), row);
  else
    std::copy_n(x, job.width(), row);
  for (std::int64_t f = 0; f < job.features(); f += kRows) std::copy_n(row + f, kRows, to + f * kBlock + t * kRows);
}

/// Tokens [begin, begin + n) of head h.
void fill(const LinearScan& job, std::int64_t h, std::int64_t begin, const Block& block) {
  const std::int64_t f = job.width(), V = job.values(), C = job.columns();
  std::fill_n(block.row, job.features(), 0.0f);
  for (std::int64_t t = 0; t < block.n; t++) {
    spread(job, job.q.row(begin + t) + h * f, t, block.row, block.q);
    spread(job, job.k.row(begin + t) + h * f, t, block.row, block.k);
    const float* v = job.v.row(begin + t) + h * V;
    for (std::int64_t c = 0; c < C; c += kLanes) {
      vf part = V - c >= kLanes ? load(v + c) : V > c ? load_part(v + c, V - c) : vf{};
      if (job.normalize && c <= V && V < c + kLanes) part[V - c] = 1.0f;
      store(block.v + c * kBlock + t * kLanes, part);
      store(block.y + c * kBlock + t * kLanes, vf{});
    }
  }
}

/// kRows rows of the state from feature f on, columns [c, c + kLanes), through all tokens of the block.
template <bool Decays>
void pass(const Block& block, std::int64_t C, std::int64_t f, std::int64_t c, float decay, float* state) {
  const float *q = block.q + f * kBlock, *k = block.k + f * kBlock, *v = block.v + c * kBlock;
  float* y = block.y + c * kBlock;
  vf s[kRows];
  for (int r = 0; r < kRows; r++) s[r] = load(state + r * C);
  for (std::int64_t t = 0; t < block.n; t++, q += kRows, k += kRows, v += kLanes, y += kLanes) {
    const vf value = load(v);
    vf sum = load(y);
    for (int r = 0; r < kRows; r++) {
      s[r] = fma(splat(k[r]), value, Decays ? decay * s[r] : s[r]);
      sum = fma(splat(q[r]), s[r], sum);
    }
    store(y, sum);
  }
  for (int r = 0; r < kRows; r++) store(state + r * C, s[r]);
}

template <bool Decays>
void run(const LinearScan& job, std::int64_t h, const Block& block) {
  const std::int64_t F = job.features(), C = job.columns();
  const float decay = Decays ? job.decay[h] : 1.0f;
  for (std::int64_t f = 0; f < F; f += kRows)
    for (std::int64_t c = 0; c < C; c += kLanes) pass<Decays>(block, C, f, c, decay, job.state + (h * F + f) * C + c);
}

void settle_all(float* state, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) store(state + i, settle<kLanes>(load(state + i)));
}

void write(const LinearScan& job, std::int64_t h, std::int64_t begin, const Block& block) {
  const std::int64_t V = job.values(), last = V / kLanes * kLanes;
  for (std::int64_t t = 0; t < block.n; t++) {
    const float* from = block.y + t * kLanes;
    float* to = job.y.row(begin + t) + h * V;
    const float divisor = job.normalize ? from[last * kBlock + V - last] + job.eps : 1.0f;
    for (std::int64_t c = 0; c < last; c += kLanes) store(to + c, load(from + c * kBlock) / divisor);
    if (last < V) store_part(to + last, load(from + last * kBlock) / divisor, V - last);
  }
}

vf read(const float* from, std::int64_t n) { return n == kLanes ? load(from) : load_part(from, n); }
void write(float* to, vf y, std::int64_t n) { n == kLanes ? store(to, y) : store_part(to, y, n); }

/// kLanes channels of WkvScan.
struct Wkv {
  vf above, below, top, age;

  explicit Wkv(const float* s)
      : above(load(s)), below(load(s + kTile)), top(load(s + 2 * kTile)), age(load(s + 3 * kTile)) {}
  void keep(float* s) const {
    store(s, above);
    store(s + kTile, below);
    store(s + 2 * kTile, top);
    store(s + 3 * kTile, age);
  }

  vf step(vf k, vf v, vf w, vf u) {
    // Exponents are taken from their difference to `top`, and its decay is w times a count: a largest
    // exponent that w is added to at every step would be off by a rounding for each.
    const vf apart = k - top, none{};
    const vf now = fma(-w, age, u + apart);
    const Decay<kLanes> old(now > none ? -now : none), own(now > none ? none : now);
    const vf y = (old.times(above) + own.times(v)) / (old.times(below) + own.times(splat(1.0f)));
    age = age + 1.0f;
    const vf next = fma(-w, age, apart);
    const auto larger = next > none;
    const Decay<kLanes> past(larger ? -next : none), mine(larger ? none : next);
    above = settle<kLanes>(past.times(above) + mine.times(v));
    below = past.times(below) + mine.times(splat(1.0f));
    top = larger ? k : top;
    age = larger ? none : age;
    return y;
  }
};

/// Token t of the channels [at, at + width).
void step(const SelectiveScan& job, std::int64_t t, std::int64_t at, std::int64_t width) {
  const std::int64_t N = job.b.cols, place = at / kTile * N * kTile + at % kTile;
  const float *b = job.b.row(t), *c = job.c.row(t), *rates = job.rates + place;
  float* state = job.state + place;
  const vf x = read(job.x.row(t) + at, width), d = softplus<kLanes>(read(job.dt.row(t) + at, width));
  const vf in = d * x;
  vf y = load(job.skip + at) * x;
  for (std::int64_t n = 0; n < N; n++) {
    const Decay<kLanes> decay(d * load(rates + n * kTile));
    const vf s = settle<kLanes>(fma(splat(b[n]), in, decay.times(load(state + n * kTile))));
    store(state + n * kTile, s);
    y = fma(splat(c[n]), s, y);
  }
  write(job.y.row(t) + at, y, width);
}

}  // namespace

void linear_scan(const LinearScan& job, int threads) {
  const std::int64_t T = job.q.rows, size = job.features() * job.columns(), share = Block::size(job);
  const int team = worth(T * job.heads * size, threads);
  const auto memory = aligned_array<float>(workers(job.heads, team) * share);
  parallel_for(job.heads, team, [&](std::int64_t h, int worker) {
    std::int64_t begin = 0;
    while (begin < T) {
      // Blocks end where positions are multiples of kBlock, so that numbers settle at the same ones
      // wherever a sequence is cut.
      const std::int64_t now = (job.position + begin) % kBlock, n = std::min(kBlock - now, T - begin);
      const Block block(job, memory.get() + worker * share, n);
      if (job.decay != nullptr && now == 0) settle_all(job.state + h * size, size);
      fill(job, h, begin, block);
      job.decay != nullptr ? run<true>(job, h, block) : run<false>(job, h, block);
      write(job, h, begin, block);
      begin += n;
    }
  });
}

void wkv_scan(const WkvScan& job, int threads) noexcept {
  constexpr std::int64_t kOperations = 64;  // of a step of one channel, about
  const std::int64_t T = job.k.rows, D = job.k.cols;
  parallel_for(tile_groups(D), worth(T * D * kOperations, threads), [&](std::int64_t g, int) {
    for (std::int64_t at = g * kTile; at < std::min((g + 1) * kTile, D); at += kLanes) {
      const std::int64_t n = std::min<std::int64_t>(kLanes, D - at);
      const vf w = load(job.w + at), u = load(job.u + at);
      float* state = job.state + g * 4 * kTile + at % kTile;
      Wkv wkv(state);
      for (std::int64_t t = 0; t < T; t++)
        write(job.y.row(t) + at, wkv.step(read(job.k.row(t) + at, n), read(job.v.row(t) + at, n), w, u), n);
      wkv.keep(state);
    }
  });
}

void selective_scan(const SelectiveScan& job, int threads) noexcept {
  constexpr std::int64_t kOperations = 20;  // of one number of a channel's state, about
  const std::int64_t T = job.x.rows, D = job.x.cols, N = job.b.cols;
  const std::int64_t pieces = pieces_of(tile_groups(D), kPiece);
  parallel_for(pieces, worth(T * D * N * kOperations, threads), [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kPiece * kTile, end = std::min(begin + kPiece * kTile, D);
    for (std::int64_t t = 0; t < T; t++)
      for (std::int64_t at = begin; at < end; at += kLanes) step(job, t, at, std::min<std::int64_t>(kLanes, end - at));
  });
}

}  // namespace hyena
