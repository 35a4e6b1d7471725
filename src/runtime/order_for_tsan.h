// oneTBB orders memory between the caller and the workers, before a run and after it, but where
// ThreadSanitizer cannot see it: libtbb is not built with it, and the file that includes TBB's
// headers is not either, because half of what they share would be worse than nothing. Runtime
// layer.
#pragma once

namespace quire {

/// Shows ThreadSanitizer that what this thread did before comes before what a thread does after it
/// has called this later. Nothing in other builds.
void order_for_tsan() noexcept;

}  // namespace quire
