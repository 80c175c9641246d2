#include "scan.hpp"

#include <algorithm>
#include <cmath>

#include "activation.hpp"
#include "aligned.hpp"
#include "parallel.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kBlock = 64;  // tokens: a row of the state is loaded once for so many
constexpr int kRows = 4;             // rows of the state that are in registers at a time

/// One head's features, values and outputs of a block of tokens.
struct Block {
  float *q, *k;  // [n, F]
  float *v, *y;  // [n, C]
  std::int64_t n;

  static std::int64_t size(const LinearScan& job) { return kBlock * 2 * (job.features() + job.columns()); }
  Block(const LinearScan& job, float* memory, std::int64_t tokens) : n(tokens) {
    q = memory;
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

/// Tokens [begin, begin + n) of head h.
void fill(const LinearScan& job, std::int64_t h, std::int64_t begin, const Block& block) {
  const std::int64_t f = job.width(), F = job.features(), V = job.values(), C = job.columns();
  for (std::int64_t t = 0; t < block.n; t++) {
    const float *q = job.q.row(begin + t) + h * f, *k = job.k.row(begin + t) + h * f;
    if (job.taylor) {
      taylor(q, f, block.q + t * F);
      taylor(k, f, block.k + t * F);
    } else {
      std::copy_n(q, f, block.q + t * F);
      std::copy_n(k, f, block.k + t * F);
    }
    float* v = block.v + t * C;
    std::copy_n(job.v.row(begin + t) + h * V, V, v);
    std::fill_n(v + V, C - V, 0.0f);
    if (job.normalize) v[V] = 1.0f;
  }
  std::fill_n(block.y, block.n * C, 0.0f);
}

/// R rows of the state from feature f on, columns [c, c + kLanes), through all tokens of the block.
template <int R, bool Decays>
void pass(const Block& block, std::int64_t F, std::int64_t C, std::int64_t f, std::int64_t c, float decay,
          float* state) {
  vf s[R];
  for (int r = 0; r < R; r++) s[r] = load(state + (f + r) * C + c);
  for (std::int64_t t = 0; t < block.n; t++) {
    const float *q = block.q + t * F + f, *k = block.k + t * F + f;
    const vf v = load(block.v + t * C + c);
    vf y = load(block.y + t * C + c);
    for (int r = 0; r < R; r++) {
      s[r] = fma(splat(k[r]), v, Decays ? decay * s[r] : s[r]);
      if (Decays) s[r] = settle<kLanes>(s[r]);
      y = fma(splat(q[r]), s[r], y);
    }
    store(block.y + t * C + c, y);
  }
  for (int r = 0; r < R; r++) store(state + (f + r) * C + c, s[r]);
}

template <bool Decays>
void run(const LinearScan& job, std::int64_t h, const Block& block) {
  const std::int64_t F = job.features(), C = job.columns();
  const float decay = Decays ? job.decay[h] : 1.0f;
  float* state = job.state + h * F * C;
  std::int64_t f = 0;
  for (; f + kRows <= F; f += kRows)
    for (std::int64_t c = 0; c < C; c += kLanes) pass<kRows, Decays>(block, F, C, f, c, decay, state);
  for (; f < F; f++)
    for (std::int64_t c = 0; c < C; c += kLanes) pass<1, Decays>(block, F, C, f, c, decay, state);
}

void write(const LinearScan& job, std::int64_t h, std::int64_t begin, const Block& block) {
  const std::int64_t V = job.values(), C = job.columns();
  for (std::int64_t t = 0; t < block.n; t++) {
    const float* from = block.y + t * C;
    float* to = job.y.row(begin + t) + h * V;
    const float divisor = job.normalize ? from[V] + job.eps : 1.0f;
    for (std::int64_t c = 0; c < V; c++) to[c] = from[c] / divisor;
  }
}

/// Lanes of vector i of group g, of `channels` in all: up to kLanes, none beyond the last.
std::int64_t lanes(std::int64_t channels, std::int64_t g, int i) {
  return std::clamp<std::int64_t>(channels - g * kTile - i * kLanes, 0, kLanes);
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

}  // namespace

void linear_scan(const LinearScan& job, int threads) {
  const std::int64_t T = job.q.rows, share = Block::size(job);
  const int team = worth(T * job.heads * job.features() * job.columns(), threads);
  const auto memory = aligned_array<float>(workers(job.heads, team) * share);
  parallel_for(job.heads, team, [&](std::int64_t h, int worker) {
    for (std::int64_t begin = 0; begin < T; begin += kBlock) {
      const Block block(job, memory.get() + worker * share, std::min(kBlock, T - begin));
      fill(job, h, begin, block);
      job.decay != nullptr ? run<true>(job, h, block) : run<false>(job, h, block);
      write(job, h, begin, block);
    }
  });
}

void wkv_scan(const WkvScan& job, int threads) noexcept {
  constexpr std::int64_t kOperations = 64;  // of a step of one channel, about
  const std::int64_t T = job.k.rows, D = job.k.cols;
  parallel_for(tile_groups(D), worth(T * D * kOperations, threads), [&](std::int64_t g, int) {
    for (int i = 0; i < kTile / kLanes; i++) {
      const std::int64_t at = g * kTile + i * kLanes, n = lanes(D, g, i);
      const vf w = load(job.w + at), u = load(job.u + at);
      float* state = job.state + g * 4 * kTile + i * kLanes;
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
  parallel_for(tile_groups(D), worth(T * D * N * kOperations, threads), [&](std::int64_t g, int) {
    for (int i = 0; i < kTile / kLanes; i++) {
      const std::int64_t at = g * kTile + i * kLanes, width = lanes(D, g, i);
      const float* rates = job.rates + g * N * kTile + i * kLanes;
      float* state = job.state + g * N * kTile + i * kLanes;
      const vf skip = load(job.skip + at);
      for (std::int64_t t = 0; t < T; t++) {
        const float *b = job.b.row(t), *c = job.c.row(t);
        const vf x = read(job.x.row(t) + at, width), d = softplus<kLanes>(read(job.dt.row(t) + at, width));
        const vf in = d * x;
        vf y = skip * x;
        for (std::int64_t n = 0; n < N; n++) {
          const Decay<kLanes> decay(d * load(rates + n * kTile));
          const vf s = settle<kLanes>(fma(splat(b[n]), in, decay.times(load(state + n * kTile))));
          store(state + n * kTile, s);
          y = fma(splat(c[n]), s, y);
        }
        write(job.y.row(t) + at, y, width);
      }
    }
  });
}

}  // namespace hyena
