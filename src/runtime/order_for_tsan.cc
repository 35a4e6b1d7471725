// One counter that all threads add to: every addition comes after those before it. Runtime layer.
#include "runtime/order_for_tsan.h"

#include <atomic>
#include <cstddef>

namespace quire {

#if defined(__SANITIZE_THREAD__)
namespace {
constinit std::atomic<std::size_t> g_order{0};
}  // namespace
void order_for_tsan() noexcept { g_order.fetch_add(1, std::memory_order_acq_rel); }
#else
void order_for_tsan() noexcept {}
#endif

}  // namespace quire
