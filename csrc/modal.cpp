#include "modal.hpp"

#include <algorithm>

#include "aligned.hpp"
#include "parallel.hpp"
#include "simd64.hpp"

namespace hyena {
namespace {

// A tap's time is kSegment (kSegment a + b) + c: the power for a comes from the exponential function, those
// for b and c from tables, so that nothing is stepped through that was not asked for.
constexpr std::int64_t kSegment = 64;
constexpr std::int64_t kFar = kSegment * kSegment;

constexpr std::int64_t kPiece = 8;  // vectors of taps summed up together
static_assert(kSegment % kLanes64 == 0);

/// z^t, and 1 for t = 0 whatever z.
Complex64 power(Complex64 z, std::int64_t t) {
  if (t == 0) return 1.0;
  const double n = static_cast<double>(t);
  return std::polar(std::pow(std::abs(z), n), std::arg(z) * n);
}

/// a b as one chain: the operator of the library looks for infinities.
Complex64 times(Complex64 a, Complex64 b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

/// One channel's powers, and the weights of its modes in one segment.
class ModalRow {
 public:
  explicit ModalRow(std::int64_t modes)
      : modes_(modes),
        near_(aligned_array<double>(2 * modes * kSegment)),
        steps_(aligned_array<double>(2 * modes * kSegment)),
        far_(aligned_array<double>(2 * modes)),
        weights_(aligned_array<double>(2 * modes)) {}

  /// Tables of poles^c and poles^(kSegment b).
  void begin(const Complex64* poles, const Complex64* residues) noexcept {
    poles_ = poles, residues_ = residues, far_at_ = -1;
    for (std::int64_t s = 0; s < modes_; s++) {
      Complex64 p = 1.0, q = 1.0;
      const Complex64 stride = power(poles[s], kSegment);
      for (std::int64_t i = 0; i < kSegment; i++) {
        near(s)[i] = p.real(), near(s)[kSegment + i] = p.imag();
        steps_[2 * (s * kSegment + i)] = q.real(), steps_[2 * (s * kSegment + i) + 1] = q.imag();
        p = times(p, poles[s]), q = times(q, stride);
      }
    }
  }

  /// Taps [segment * kSegment, (segment + 1) * kSegment).
  void segment(std::int64_t segment, double* to) noexcept {
    weigh(segment);
    for (std::int64_t i = 0; i < kSegment; i += kPiece * kLanes64) piece(i, to + i);
  }

 private:
  double* near(std::int64_t s) { return near_.get() + 2 * s * kSegment; }

  void weigh(std::int64_t segment) noexcept {
    const std::int64_t a = segment / kSegment, b = segment % kSegment;
    for (std::int64_t s = 0; s < modes_ && a != far_at_; s++) {
      const Complex64 w = times(residues_[s], power(poles_[s], a * kFar));
      far_[2 * s] = w.real(), far_[2 * s + 1] = w.imag();
    }
    far_at_ = a;
    for (std::int64_t s = 0; s < modes_; s++) {
      const double* step = steps_.get() + 2 * (s * kSegment + b);
      const Complex64 w = times({far_[2 * s], far_[2 * s + 1]}, {step[0], step[1]});
      weights_[2 * s] = w.real(), weights_[2 * s + 1] = -w.imag();
    }
  }

  void piece(std::int64_t from, double* to) noexcept {
    constexpr std::int64_t count = std::min(kPiece, kSegment / kLanes64);
    vd sum[count] = {};
    for (std::int64_t s = 0; s < modes_; s++) {
      const vd re = splat64(weights_[2 * s]), im = splat64(weights_[2 * s + 1]);
      const double* p = near(s) + from;
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < count; i++) {
        sum[i] = fma(re, load64(p + i * kLanes64), sum[i]);
        sum[i] = fma(im, load64(p + kSegment + i * kLanes64), sum[i]);
      }
    }
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < count; i++) store64(to + i * kLanes64, sum[i]);
  }

  std::int64_t modes_, far_at_ = -1;
  const Complex64 *poles_ = nullptr, *residues_ = nullptr;
  AlignedArray<double> near_, steps_, far_, weights_;
};

}  // namespace

void modal_taps(const Complex64* poles, const Complex64* residues, std::int64_t modes, std::int64_t t0, std::int64_t t1,
                Rows out, int threads) {
  if (t0 == t1) return;
  std::vector<ModalRow> rows;
  for (int i = 0; i < workers(out.rows, threads); i++) rows.emplace_back(modes);
  parallel_for(out.rows, threads, [&](std::int64_t c, int worker) {
    ModalRow& row = rows[worker];
    row.begin(poles + c * modes, residues + c * modes);
    alignas(kCacheLine) double taps[kSegment];
    for (std::int64_t segment = t0 / kSegment; segment * kSegment < t1; segment++) {
      const std::int64_t begin = segment * kSegment, first = std::max(t0, begin);
      row.segment(segment, taps);
      for (std::int64_t t = first; t < std::min(t1, begin + kSegment); t++)
        out.row(c)[t - t0] = static_cast<float>(taps[t - begin]);
    }
  });
}

namespace {

constexpr int kVectors = kTile / kLanes64;

/// One step of the S modes of 16 channels: x after the input w, and sums = Re sum residues x. Real and
/// imaginary products are summed up apart: one chain of both would be waited for.
inline void step(const double* poles, const double* residues, std::int64_t modes, const double* w, double* x,
                 double* sums) {
  vd input[kVectors], real[kVectors] = {}, imaginary[kVectors] = {};
  for (int i = 0; i < kVectors; i++) input[i] = load64(w + i * kLanes64);
  for (std::int64_t s = 0; s < modes; s++) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; i++) {
      const std::int64_t re = 2 * s * kTile + i * kLanes64, im = re + kTile;
      const vd a = load64(poles + re), b = load64(poles + im), u = load64(x + re), v = load64(x + im);
      const vd p = fma(a, u, fma(-b, v, input[i])), q = fma(a, v, b * u);
      store64(x + re, p);
      store64(x + im, q);
      real[i] = fma(load64(residues + re), p, real[i]);
      imaginary[i] = fma(load64(residues + im), q, imaginary[i]);
    }
  }
  for (int i = 0; i < kVectors; i++) store64(sums + i * kLanes64, real[i] - imaginary[i]);
}

/// Group g of part j over one span.
void scan_group(const ModalScan& job, const ModalSpan& span, std::int64_t j, std::int64_t g) {
  const std::int64_t P = job.parts, G = job.z.groups / P, size = 2 * job.modes * kTile;
  const double *poles = job.poles + g * size, *residues = job.residues + g * size;
  const float* skip = job.skip + g * kTile;
  const bool pre = job.pre.data != nullptr, post = job.post.data != nullptr;
  alignas(kCacheLine) double w[kTile], sums[kTile];
  alignas(kCacheLine) float total[kTile];
  for (std::int64_t t = span.first; t < span.last; t++) {
    const auto row = [&](const TileView& z, std::int64_t part) { return z.group(part * G + g) + t * kTile; };
    for (std::int64_t i = 0; i < P; i++) {
      const float *z = row(job.z, i), *gate = pre ? row(job.pre, j) : nullptr;
      for (int c = 0; c < kTile; c++) w[c] = pre ? gate[c] * z[c] : z[c];
      step(poles, residues, job.modes, w, span.state + ((i * P + j) * G + g) * size, sums);
      const float* query = post ? row(job.post, i) : nullptr;
      for (int c = 0; c < kTile; c++) {
        const float y = static_cast<float>(sums[c] + skip[c] * w[c]), gated = post ? query[c] * y : y;
        total[c] = i == 0 ? gated : total[c] + gated;
      }
    }
    std::copy_n(total, kTile, row(job.out, j));
  }
}

}  // namespace

void modal_scan(const ModalScan& job, const std::vector<ModalSpan>& spans, int threads) {
  const std::int64_t groups = job.z.groups, G = groups / job.parts;
  std::int64_t rows = 0;
  for (const ModalSpan& span : spans) rows += span.last - span.first;
  const std::int64_t work = 6 * rows * groups * job.parts * job.modes * kTile;
  const auto count = static_cast<std::int64_t>(spans.size());
  parallel_for(count * groups, worth(work, threads),
               [&](std::int64_t piece, int) { scan_group(job, spans[piece / groups], piece % groups / G, piece % G); });
}

}  // namespace hyena
