#include "directconv.hpp"

#include <algorithm>
#include <vector>

#include "aligned.hpp"
#include "gatedlanes.hpp"
#include "parallel.hpp"

namespace hyena {
namespace {

// The sum over lags is a tree of fixed shape: chains of 16 products, 16 chains to a part, parts
// into the total. Its rounding error grows far slower than that of one chain, and its shape
// depends on the lag alone.
constexpr std::int64_t kChain = 16, kChains = 16;
constexpr std::int64_t kStep = kChain * kTile;  // floats between the first lags of two chains
constexpr int kOutputs = 8;                     // computed together: enough chains to hide the latency

struct Sum {
  vf total{}, part{};
  /// Adds the sum of chain number `chain`; chains come in order.
  void add(std::int64_t chain, vf value) {
    part += value;
    if ((chain + 1) % kChains == 0) {
      total += part;
      part = vf{};
    }
  }
  /// Adds lags [from, lags) of the output whose input row is at w, where kChain divides `from`.
  void add_lags(const float* taps, const float* w, std::int64_t from, std::int64_t lags) {
    for (std::int64_t begin = from; begin < lags; begin += kChain) {
      const std::int64_t end = std::min(begin + kChain, lags);
      vf value{};
      for (std::int64_t k = begin; k < end; k++) value = fma(load(taps + k * kTile), load(w - k * kTile), value);
      add(begin / kChain, value);
    }
  }
  vf result() const { return total + part; }
};

/// Whole chains of kOutputs consecutive outputs, the first with its input row at w.
void add_chains(Sum* sums, const float* taps, const float* w, std::int64_t chains) {
  for (std::int64_t chain = 0; chain < chains; chain++, taps += kStep, w -= kStep) {
    vf value[kOutputs] = {};
#pragma GCC unroll 16
    for (int k = 0; k < kChain; k++) {
      const vf tap = load(taps + k * kTile);
#pragma GCC unroll 8
      for (int r = 0; r < kOutputs; r++) value[r] = fma(tap, load(w + (r - k) * kTile), value[r]);
    }
    for (int r = 0; r < kOutputs; r++) sums[r].add(chain, value[r]);
  }
}

/// Whole chains of one output, four at a time.
std::int64_t add_chains(Sum& sum, const float* taps, const float* w, std::int64_t chains) {
  std::int64_t chain = 0;
  for (; chain + 4 <= chains; chain += 4, taps += 4 * kStep, w -= 4 * kStep) {
    vf value[4] = {};
#pragma GCC unroll 16
    for (int k = 0; k < kChain; k++)
      for (int j = 0; j < 4; j++)
        value[j] = fma(load(taps + j * kStep + k * kTile), load(w - j * kStep - k * kTile), value[j]);
    for (int j = 0; j < 4; j++) sum.add(chain + j, value[j]);
  }
  return chain;
}

/// Outputs of lanes [lane, lane + kLanes) of group g; w points at row 0 (of which only rows that
/// some output needs exist).
void convolve(const GatedConv& job, const TileView& taps, std::int64_t g, int lane, const float* w) {
  const std::int64_t K = taps.length, S = job.z.length;
  const float* h = taps.group(g) + lane;
  const GatedLanes<kLanes> gated(job, g, lane);
  const auto lags = [K](std::int64_t t) { return std::min(K, t + 1); };
  std::int64_t t = job.start;
  for (; t + kOutputs <= S; t += kOutputs) {
    Sum sums[kOutputs];
    const std::int64_t chains = lags(t) / kChain;
    add_chains(sums, h, w + t * kTile, chains);
    for (int r = 0; r < kOutputs; r++) {
      sums[r].add_lags(h, w + (t + r) * kTile, chains * kChain, lags(t + r));
      gated.finish(t + r, sums[r].result());
    }
  }
  for (; t < S; t++) {
    Sum sum;
    const std::int64_t chains = add_chains(sum, h, w + t * kTile, lags(t) / kChain);
    sum.add_lags(h, w + t * kTile, chains * kChain, lags(t));
    gated.finish(t, sum.result());
  }
}

}  // namespace

void direct_conv(const GatedConvs& jobs, const TileView& taps, int threads) {
  const auto count = static_cast<std::int64_t>(jobs.size()), pieces = count * taps.groups;
  // Rows of w that a job needs: from the oldest that its first output sees.
  const auto first = [&](const GatedConv& job) { return std::max<std::int64_t>(0, job.start - taps.length + 1); };
  std::int64_t products = 0, most = -1;
  for (const GatedConv& job : jobs) {
    products += (job.z.length - job.start) * std::min(job.z.length, taps.length) * taps.groups * kTile;
    if (job.pre.data != nullptr) most = std::max(most, job.z.length - first(job));
  }
  const int team = worth(products, threads);
  std::vector<AlignedArray<float>> gated;
  for (int i = 0; most >= 0 && i < workers(pieces, team); i++) gated.push_back(aligned_array<float>(most * kTile));
  parallel_for(pieces, team, [&](std::int64_t piece, int worker) {
    const GatedConv& job = jobs[static_cast<std::size_t>(piece % count)];
    const std::int64_t g = piece / count, begin = first(job);
    const float* w = job.z.group(g);
    if (job.pre.data != nullptr) {
      float* rows = gated[static_cast<std::size_t>(worker)].get();
      for (int lane = 0; lane < kTile; lane += kLanes) {
        const GatedLanes<kLanes> lanes(job, g, lane);
        for (std::int64_t t = begin; t < job.z.length; t++) store(rows + (t - begin) * kTile + lane, lanes.input(t));
      }
      w = rows - begin * kTile;
    }
    for (int lane = 0; lane < kTile; lane += kLanes) convolve(job, taps, g, lane, w + lane);
  });
}

}  // namespace hyena
