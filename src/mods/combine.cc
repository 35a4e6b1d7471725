// noop_mask, and_masks and or_masks. Mods layer.
#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire {
namespace {

MaskMod constant(bool visible) {
  return [visible](auto, auto, auto, auto) { return visible; };
}

}  // namespace

MaskMod noop_mask() {
  const FloatEnv float_env;
  return constant(true);
}

MaskMod and_masks(std::span<const MaskMod> masks) {
  const FloatEnv float_env;
  if (masks.empty()) return constant(true);
  MaskMod all = masks[0];
  for (const MaskMod& mask : masks.subspan(1)) all = all & mask;
  return all;
}

MaskMod or_masks(std::span<const MaskMod> masks) {
  const FloatEnv float_env;
  if (masks.empty()) return constant(false);
  MaskMod any = masks[0];
  for (const MaskMod& mask : masks.subspan(1)) any = any | mask;
  return any;
}

}  // namespace quire
