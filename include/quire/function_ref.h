// FunctionRef<R(Args...)>: a reference to something callable, two words, never allocates. Like
// string_view it does not own: use it for parameters, not for members that outlive the call.
// Public; runtime layer.
#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace quire {

template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  // Implicit, so that a lambda or a plain function can be passed where a FunctionRef is expected.
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef> &&
             std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& callable) noexcept {  // NOLINT(google-explicit-constructor)
    using Callable = std::remove_reference_t<F>;
    if constexpr (std::is_function_v<Callable>) {
      target_.function = reinterpret_cast<void (*)()>(&callable);
      call_ = [](Target target, Args... args) -> R {
        return std::invoke(reinterpret_cast<Callable*>(target.function),
                           std::forward<Args>(args)...);
      };
    } else {
      target_.object = const_cast<void*>(static_cast<const void*>(std::addressof(callable)));
      call_ = [](Target target, Args... args) -> R {
        return std::invoke(*static_cast<Callable*>(target.object), std::forward<Args>(args)...);
      };
    }
  }

  R operator()(Args... args) const { return call_(target_, std::forward<Args>(args)...); }

 private:
  union Target {
    void* object;
    void (*function)();
  };
  Target target_;
  R (*call_)(Target, Args...);
};

}  // namespace quire
