// What a short convolution of K taps remembers of one sequence.
#pragma once

#include "aligned.hpp"
#include "rows.hpp"

namespace hyena {

/// The newest rows of a sequence, in order, wherever they stand in memory for `capacity` of them: they
/// are moved down when they have come to its end.
class RowWindow {
 public:
  RowWindow(std::int64_t capacity, std::int64_t cols);  // throws std::bad_alloc
  RowWindow(const RowWindow& other);                    // throws std::bad_alloc
  RowWindow& operator=(const RowWindow&) = delete;

  std::int64_t size() const { return size_; }
  std::int64_t capacity() const { return capacity_; }
  ConstRows rows() const { return {data_.get() + first_ * cols_, size_, cols_, cols_}; }
  /// Room for n rows more, if need be without all but the newest `kept`.
  void make_room(std::int64_t n, std::int64_t kept) noexcept;
  /// Where row `size()` is to be written, for which there is room.
  float* next() { return data_.get() + (first_ + size_) * cols_; }
  void append(ConstRows x) noexcept;
  /// `next` has been written.
  void advance() noexcept { size_++; }
  void drop_oldest(std::int64_t n) noexcept { first_ += n, size_ -= n; }
  void drop_newest(std::int64_t n) noexcept { size_ -= n; }
  void clear() noexcept { first_ = size_ = 0; }

 private:
  std::int64_t capacity_, cols_, first_ = 0, size_ = 0;
  AlignedArray<float> data_;
};

class ConvTail {
 public:
  /// Of `before` = K - 1 projected rows of `channels`, zeros at first, and of at least the newest
  /// `kept` rows of `width` that the layer was given. Throws std::bad_alloc.
  ConvTail(std::int64_t before, std::int64_t channels, std::int64_t width, std::int64_t kept);

  std::int64_t position() const { return position_; }
  /// [K - 1, C], if they are known: after a rewind they have to be made again of the newest inputs.
  ConstRows rows() const { return rows_.rows(); }
  bool known() const { return known_; }
  void set_rows(ConstRows rows) noexcept;
  /// [m, D], what the layer was given last.
  ConstRows inputs() const { return inputs_.rows(); }
  /// Most inputs that it can hold.
  std::int64_t capacity() const { return inputs_.capacity(); }
  /// The first position that `rewind` can go back to.
  std::int64_t oldest() const;
  std::int64_t nbytes() const;

  /// Appends what the layer was given, x [n, D]; the rows are then known no more.
  void take_in(ConstRows x) noexcept;
  /// Back to a position from `oldest` on.
  void rewind(std::int64_t position) noexcept;
  /// A new tail to where one is that was given these last.
  void resume(std::int64_t position, ConstRows inputs) noexcept;

  /// One by one: make_room(), then the next projected row and the next input are written, the first
  /// behind rows() and apart from it, then advance() takes both in.
  void make_room() noexcept;
  float* next_row() { return rows_.next(); }
  float* next_input() { return inputs_.next(); }
  void advance() noexcept;

 private:
  std::int64_t before_, kept_, position_ = 0;
  bool known_ = true;
  RowWindow rows_, inputs_;
};

/// Bytes of such a tail.
std::int64_t conv_tail_bytes(std::int64_t before, std::int64_t channels, std::int64_t width, std::int64_t kept);

}  // namespace hyena
