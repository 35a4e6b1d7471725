// One task per stored plane and band of rows: writes the band at its first position and copies it
// to the others. Mask layer.
#include "mask/fill_planes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/executor_of.h"
#include "runtime/run_parallel.h"

namespace quire::mask {
namespace {

constexpr std::size_t kBandBytes = std::size_t{256} << 10;  // stays in L2 until it is copied

// For each stored plane, the positions b * heads + h that use it.
std::vector<std::vector<std::int64_t>> places_of_planes(const BlockRows& rows,
                                                        const PlaneArray& array) {
  std::vector<std::vector<std::int64_t>> places(rows.planes());
  for (std::int64_t b = 0; b < array.batch; ++b)
    for (std::int64_t h = 0; h < array.heads; ++h)
      places[rows.plane(b, h)].push_back(b * array.heads + h);
  return places;
}

}  // namespace

void fill_planes(const BlockRows& rows, const PlaneArray& array, Executor* executor,
                 FillRow fill_row) {
  const std::shared_ptr<Executor> on = executor_of(executor);
  const std::vector<std::vector<std::int64_t>> places = places_of_planes(rows, array);
  const std::size_t row_bytes = array.row_bytes;
  const std::size_t row_count = rows.rows_per_plane();
  if (row_count == 0 || row_bytes == 0 || places.empty()) return;
  const std::size_t band = std::clamp<std::size_t>(kBandBytes / row_bytes, 1, row_count);
  const std::size_t bands = (row_count + band - 1) / band;
  const auto at = [&](std::int64_t place, std::size_t row) {
    return static_cast<std::byte*>(array.data) + (place * row_count + row) * row_bytes;
  };
  run_parallel(*on, places.size() * bands, [&](std::size_t task, std::size_t) {
    const std::size_t plane = task / bands, begin = task % bands * band;
    const std::size_t end = std::min(begin + band, row_count);
    const std::vector<std::int64_t>& of_plane = places[plane];
    if (of_plane.empty()) return;
    for (std::size_t r = begin; r < end; ++r) {
      const auto row = static_cast<std::int64_t>(r), of = static_cast<std::int64_t>(plane);
      std::byte* out = at(of_plane.front(), r);
      if (r > begin && rows.row_id(of, row) == rows.row_id(of, row - 1))
        std::memcpy(out, out - row_bytes, row_bytes);
      else
        fill_row(rows.row(of, row), out);
    }
    for (std::size_t i = 1; i < of_plane.size(); ++i)
      std::memcpy(at(of_plane[i], begin), at(of_plane.front(), begin), (end - begin) * row_bytes);
  });
}

}  // namespace quire::mask
